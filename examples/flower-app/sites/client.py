"""A site: where its rows are, and where its model goes.

On a SuperNode both stand in its node configuration. In a simulation node k is the k-th client of a feature file or a
table; without one, it makes rows up.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from flwr.app import Context

from fedhip.data import FeatureSet, feature_set, read_features
from fedhip.data.tables import Description, load_table, read_labelled
from fedhip.errors import InputError
from fedhip.flower import client_app
from fedhip.heads.model import Model


def rows(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Training rows, and of each the number of its class in the list that all sites have."""
    data = read(context)
    mine = np.ones(len(data), bool) if data.split is None else data.split == 0
    if "data" not in context.node_config:
        mine &= data.clients == virtual(context, data)
    names = np.array(data.class_names)[data.labels[mine]]
    return data.features[mine], feature_set(data.features[mine], names, class_names=classes(context)).labels


def keep(context: Context, model: Model) -> None:
    """The site's model, as a file."""
    name = f"site-{context.node_config.get('partition-id')}.safetensors"
    path = Path(str(context.node_config.get("out") or Path(str(context.run_config["out"])) / name))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(model, class_names=tuple(classes(context))).to_file(path)


def classes(context: Context) -> list[str]:
    """Their names, in the order of their numbers."""
    return [name.strip() for name in str(context.run_config["classes"]).split(",")]


def read(context: Context) -> FeatureSet:
    """The rows of a SuperNode, or those of all clients of a simulation."""
    node, run = context.node_config, context.run_config
    path = Path(str(node.get("data") or run["data"]))
    if path.suffix in (".npz", ".safetensors"):
        return read_features(path)
    if "columns" in node:
        return read_labelled(path, Description.from_file(str(node["columns"])))
    if "data" in node:
        raise InputError("give the agreed description of the table's columns too: columns=… in the node configuration")
    if not run["data"]:
        return made_up(context)
    table = load_table(path, label=str(run["label"]), client=str(run["client"]))
    return table.features(np.ones(len(table), bool))[0]


def made_up(context: Context) -> FeatureSet:
    """Thirty rows of each node."""
    random, names = np.random.default_rng(0), np.array(classes(context))
    nodes = int(context.node_config["num-partitions"])
    labels = np.arange(30 * nodes) % len(names)
    features = random.normal(size=(len(names), 8))[labels] + random.normal(size=(len(labels), 8))
    return feature_set(features, names[labels], np.arange(len(labels)) % nodes)


def virtual(context: Context, data: FeatureSet) -> str:
    """Which client of the file the node is, in a simulation: each client is one node."""
    names = np.unique([] if data.clients is None else data.clients)
    nodes = int(context.node_config["num-partitions"])
    if len(names) != nodes:
        raise InputError(
            f"the rows are of {len(names)} clients and the simulation has {nodes} nodes; "
            f"give: --federation-config 'num-supernodes={len(names)}' -c 'sites={len(names)}'"
        )
    return str(names[int(context.node_config["partition-id"])])


app = client_app(rows, keep)
