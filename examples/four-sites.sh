#!/usr/bin/env bash
# A federation of four sites on this machine: real processes, TLS, keys that each site makes, sums under masks; some
# minutes on two cores.
#   examples/four-sites.sh [FOLDER]
set -euo pipefail
folder=${1:-$(mktemp -d)}
mkdir -p "$folder" && cd "$folder"
stop() { for place in site-* fed; do [ ! -d "$place" ] || fedhip federation stop "$place"; done; }
trap 'status=$?; set +x; stop >&2; exit $status' EXIT

# The drawings come with the package: ten classes, of which each site has seen another share. Any three sites have more
# training rows together (288) than there are features (256, by --pooling cls): the census asks for it.
python - <<'PYTHON'
import socket
from pathlib import Path

import numpy as np
from PIL import Image

from fedhip.data import load_dataset

drawings = load_dataset("sketches")
names = np.array(drawings.class_names)
order = np.random.default_rng(0)
for site, sees in {"north": range(4), "east": range(3, 7), "south": range(6, 10), "west": range(10)}.items():
    rows = np.flatnonzero(np.isin(drawings.labels, list(sees)))
    rows = order.choice(rows, 120, replace=False)
    np.savez(f"{site}.npz", images=drawings.images[rows], labels=names[drawings.labels[rows]])
Image.fromarray(drawings.images[rows[0], :, :, 0]).save("drawing.png")
Path("classes.txt").write_text("\n".join(names[:10]))
with socket.create_server(("127.0.0.1", 0)) as free:  # so that two can run this at once
    Path("port").write_text(str(free.getsockname()[1]))
PYTHON

set -x
fedhip federation init fed --name demo --site north --site east --site south --site west \
  --classes classes.txt --backbone fedhip-vit --pooling cls --port "$(cat port)" --no-make-keys
for site in north east south west; do # at each site, where its key is made
  fedhip federation accept "fed/parcels/$site-1.json"
done
fedhip federation enroll fed site-*/reply-*.json
ask() { fedhip federation fingerprint "fed/parcels/$1-2.json"; } # between machines: a call to that site
for pair in north:east east:south south:west west:north; do # at each site again
  fedhip federation accept "fed/parcels/${pair%:*}-2.json" --fingerprint "$(ask "${pair#*:}")"
done
fedhip federation serve fed --background

sites=()
for site in north east south west; do
  fedhip federation site "site-$site" --data "$site.npz" --out "result-$site" --background &
  sites+=($!)
done
for process in "${sites[@]}"; do wait "$process"; done

fedhip federation run fed
fedhip federation status fed
fedhip verify fed/state/result
fedhip predict result-west --client west drawing.png
stop
