"""Logistic regression on MNIST with 1,000 clients, from raw pixels: seconds and accuracy of fedhip, and of Flower.

    python benchmarks/mnist.py FOLDER             FOLDER holds MNIST's four files, unpacked (train-images-idx3-ubyte, …)
    python benchmarks/mnist.py FOLDER --flower    FedAvg in Flower's simulation on the same clients (flwr[simulation])

The data are not in this repository. All rows are shuffled and divided as in McMahan's paper: each client has two shards
of rows in the order of their digits, so most have two digits; it trains on those of MNIST's 60,000 training rows, and
its other rows are of the 10,000 test rows. The global model is scored on all test rows, personalized ones on each
client's. FedAvg trains with ten clients in each of 100 rounds, one epoch in batches of ten.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.many import measured
from fedhip.data import make_partition, read_features
from fedhip.runs import Run

#: What the files are, wherever they came from: SHA-256.
FILES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
CLIENTS, EACH_ROUND = 1000, 10
#: What is run, by what is shown of it.
HEADS = {"ridge": ["--head", "ridge"], "logistic": ["--head", "logistic"]}


def main() -> None:
    """Make the clients, run, print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="MNIST's four files, unpacked")
    parser.add_argument("--flower", action="store_true", help="FedAvg in Flower's simulation, too")
    parser.add_argument("--heads", default="ridge,logistic", help="heads of fedhip (default: %(default)s)")
    parser.add_argument("--rates", default="0.01,0.03,0.1", help="of FedAvg's SGD (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=100, help="of FedAvg (default: %(default)s)")
    parser.add_argument("--work", type=Path, help="where to work (default: a temporary folder)")
    given = parser.parse_args()
    with TemporaryDirectory(dir=given.work) as folder:
        rows = Path(folder) / "rows.npz"
        write_rows(given.folder, rows)
        for head in filter(None, given.heads.split(",")):
            out = Path(folder) / head
            words = ["run", "--features", str(rows), "--out", str(out), *HEADS[head]]
            words += ["--methods", "global,fedhip", "--no-statistics", "--quiet"]
            wall, processor, own, _ = measured([sys.executable, "-m", "fedhip", *words])
            methods = Run.open(out).results["methods"]
            shown = ", ".join(f"{name} {each['accuracy']['weighted']:.1%}" for name, each in methods.items())
            print(f"fedhip --head {head}: {wall:.0f} s, processor {processor:.0f} s, {own:.2f} GB; {shown}", flush=True)
            print({phase: round(seconds, 1) for phase, seconds in Run.open(out).results["seconds"].items()})
        for rate in given.rates.split(",") if given.flower else ():
            asked = f"{str(rows)!r}, {float(rate)}, {given.rounds}"
            words = [sys.executable, "-c", f"from benchmarks.mnist import flower; flower({asked})"]
            wall, processor = measured_with_all(words)
            print(f"Flower, FedAvg, rate {rate}: {wall:.0f} s, processor {processor:.0f} s", flush=True)


def write_rows(folder: Path, path: Path) -> None:
    """A feature file of raw pixels, between 0 and 1, with 1,000 clients."""
    parts = [(_read(folder, f"{part}-images-idx3-ubyte", 16), _read(folder, f"{part}-labels-idx1-ubyte", 8))
             for part in ("train", "t10k")]  # fmt: skip
    labels = np.concatenate([labels for _, labels in parts]).astype(np.int64)
    pixels = np.concatenate([images for images, _ in parts]).reshape(len(labels), -1)
    split = np.repeat(np.array([0, 1], np.int8), [len(labels) for _, labels in parts])
    order = np.random.default_rng(0).permutation(len(labels))  # or all test rows of a digit would be in one shard
    partition = make_partition(labels[order], "shards", num_clients=CLIENTS, shards_per_client=2, seed=0)
    names = np.array(partition.clients)[partition.assignment]
    features = pixels[order].astype(np.float32) / np.float32(255)
    np.savez(path, features=features, labels=labels[order], clients=names, split=split[order])


def _read(folder: Path, name: str, head: int) -> NDArray[np.uint8]:
    content = (folder / name).read_bytes()
    if (found := hashlib.sha256(content).hexdigest()) != FILES[name]:
        raise SystemExit(f"{folder / name} is not MNIST's: its SHA-256 is {found}")
    return np.frombuffer(content, np.uint8, offset=head)


def measured_with_all(words: list[str]) -> tuple[float, float]:
    """Seconds by the clock and of processors, of a program and all below it, which need not wait for one another."""
    begin, ticks = time.perf_counter(), dict[int, int]()
    with subprocess.Popen(words) as process:  # noqa: S603
        family = {process.pid}
        while process.poll() is None:
            for entry in sorted(int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()):
                with contextlib.suppress(OSError):
                    fields = Path(f"/proc/{entry}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                    if entry in family or int(fields[1]) in family:
                        family.add(entry)
                        ticks[entry] = int(fields[11]) + int(fields[12])
            time.sleep(0.5)
    if process.returncode:
        raise SystemExit(process.returncode)
    return time.perf_counter() - begin, sum(ticks.values()) / os.sysconf("SC_CLK_TCK")


def flower(path: str, rate: float, rounds: int) -> None:
    """FedAvg in Flower's simulation; prints the accuracy of the global model on all test rows."""
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        import torch

        torch.set_num_threads(1)
        X, y = rows_of(path, int(context.node_config["partition-id"]))
        model = torch.nn.Linear(X.shape[1], 10)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        for batch in torch.split(torch.randperm(len(y)), 10):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(X[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
        return Message(RecordDict(content), reply_to=message)  # type: ignore[arg-type]

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        import torch

        data = read_features(Path(path))
        test = np.flatnonzero(data.split == 1)
        X, y = torch.from_numpy(np.asarray(data.features[test])), torch.from_numpy(np.asarray(data.labels[test]))
        strategy = FedAvg(fraction_train=EACH_ROUND / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        model, begin = torch.nn.Linear(X.shape[1], 10), time.perf_counter()
        done = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=rounds, train_config=ConfigRecord({}))
        model.load_state_dict(done.arrays.to_torch_state_dict())
        right = (model(X).argmax(dim=1) == y).double().mean()
        print(
            f"global {float(right):.1%} after {rounds} rounds, {time.perf_counter() - begin:.0f} s of them", flush=True
        )

    cores = os.cpu_count() or 1
    run_simulation(
        server, client, CLIENTS,
        backend_config={"init_args": {"num_cpus": cores}, "client_resources": {"num_cpus": 1.0}},
    )  # fmt: skip


_KEPT: dict[str, Any] = {}


def rows_of(path: str, number: int) -> tuple[Any, Any]:
    """A client's training rows; the file is mapped once in each process."""
    import torch

    if path not in _KEPT:
        data = read_features(Path(path))
        names, whose = np.unique(np.asarray(data.clients), return_inverse=True)
        _KEPT[path] = data, whose, len(names)
    data, whose, _ = _KEPT[path]
    mine = np.flatnonzero((whose == number) & (data.split == 0))
    return torch.from_numpy(np.asarray(data.features[mine])), torch.from_numpy(np.asarray(data.labels[mine]))


if __name__ == "__main__":
    main()
