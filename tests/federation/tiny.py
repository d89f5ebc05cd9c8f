"""A tiny app of the engine, which proves that messages pass; the round's own apps are tested elsewhere."""

from __future__ import annotations

from pathlib import Path

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "tiny"
version = "1.0.0"
description = "says hello"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fedhip"
[tool.flwr.app.components]
serverapp = "tiny_code:server"
clientapp = "tiny_code:client"
[tool.flwr.app.config]
federation-folder = ""
attempt = 1
"""

CODE = """\
import json, time
from pathlib import Path
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client, server = ClientApp(), ServerApp()

@client.query("hello")
def hello(message: Message, context: Context) -> Message:
    folder = Path(context.node_config["site-folder"])
    (folder / "was-asked").touch()
    config = ConfigRecord({"site": folder.name})
    data = ArrayRecord({"x": Array(np.arange(1 << 20, dtype=np.int64))})  # 8 MiB: more than one piece
    return Message(RecordDict({"c": config, "a": data}), reply_to=message)

@server.main()
def main(grid: Grid, context: Context) -> None:
    folder = Path(context.run_config["federation-folder"])
    nodes = json.loads((folder / "state/nodes.json").read_text())
    with (folder / "state/progress.jsonl").open("a") as file:
        file.write(json.dumps({"time": "", "step": "hello", "text": "asking"}) + "\\n")
    while len(online := list(grid.get_node_ids())) < WANTED:
        time.sleep(0.5)
    messages = [Message(RecordDict(), dst_node_id=n, message_type="query.hello") for n in online]
    asked = set(grid.push_messages(messages))
    names = []
    while asked:
        for reply in grid.pull_messages(list(asked)):
            asked.discard(reply.metadata.reply_to_message_id)
            site = reply.content["c"]["site"]
            assert int(reply.content["a"]["x"].numpy().sum()) == (1 << 20) * ((1 << 20) - 1) // 2
            assert site == "site-" + nodes[str(reply.metadata.src_node_id)]
            names.append(site)
        time.sleep(0.3)
    if FAIL:
        raise RuntimeError("asked to fail")
    (folder / "state/result").mkdir(exist_ok=True)
    (folder / "state/result/results.json").write_text(json.dumps(sorted(names)))
"""


def write_app(folder: Path, *, wanted: int = 2, fail: bool = False) -> Path:
    """The app's folder."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "tiny_code.py").write_text(CODE.replace("WANTED", str(wanted)).replace("FAIL", str(fail)))
    return folder
