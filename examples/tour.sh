#!/usr/bin/env bash
# The README's tour on a small scale: 300 drawings of ten classes, five clients; less than a minute on two cores.
#   examples/tour.sh [FOLDER]
set -euo pipefail
folder=${1:-$(mktemp -d)}
mkdir -p "$folder" && cd "$folder"

# The drawings come with the package; the last two folders play a site that joins later.
python - <<'PYTHON'
from pathlib import Path

import numpy as np
from PIL import Image

from fedhip.data import load_dataset

drawings = load_dataset("sketches")
ten = np.flatnonzero(drawings.labels < 10)
names = np.array(drawings.class_names)[drawings.labels]
place = np.arange(len(drawings)) % 100  # each class has a hundred
first = ten[place[ten] < 30]
np.savez("drawings.npz", images=drawings.images[first], labels=names[first])
for site, begin, end in (("new-site", 30, 40), ("new-site-later", 40, 45)):
    for row in ten[(place[ten] >= begin) & (place[ten] < end)]:
        path = Path(site, names[row], f"{row}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(drawings.images[row, :, :, 0]).save(path)
PYTHON

set -x
fedhip run --data drawings.npz --clients 5 --concentration 0.5 --out first
fedhip predict first --client 3 new-site/ant | head -8
fedhip export first --client 3 model.onnx
fedhip join first --client new-site --data new-site
fedhip update first --client new-site --data new-site-later
fedhip forget first --client 3
fedhip personalize first
fedhip verify first
fedhip run first/config.toml --beta 5 --out second
fedhip report first second --out comparison.html
