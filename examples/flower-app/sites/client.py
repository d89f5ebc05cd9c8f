"""A site: where its rows are, and where its model goes.

On a SuperNode both stand in its node configuration; in a simulation node k is the k-th client of the feature file.
"""

from pathlib import Path

import numpy as np
from flwr.app import Context

from fedhip.data import FeatureSet, read_features
from fedhip.flower import client_app
from fedhip.heads.model import Model


def rows(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Training rows."""
    data = read_features(Path(str(context.node_config.get("data") or context.run_config["data"])))
    mine = np.ones(len(data), bool) if (name := virtual(context, data)) is None else data.clients == name
    if data.split is not None:
        mine &= data.split == 0
    return data.features[mine], data.labels[mine]


def keep(context: Context, model: Model) -> None:
    """The site's model, as a file."""
    name = f"site-{context.node_config.get('partition-id')}.safetensors"
    path = Path(str(context.node_config.get("out") or Path(str(context.run_config["out"])) / name))
    path.parent.mkdir(parents=True, exist_ok=True)
    model.to_file(path)


def virtual(context: Context, data: FeatureSet) -> str | None:
    """Which client of the file the node is, in a simulation."""
    if "data" in context.node_config or data.clients is None:
        return None
    names = np.unique(data.clients)
    return str(names[int(context.node_config["partition-id"]) % len(names)])


app = client_app(rows, keep)
