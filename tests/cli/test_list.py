import argparse
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from fedhip.cli import list as command


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    args = parser.parse_args(["list", *words])
    return int(args.handler(args))


def test_datasets(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("datasets") == 0
    printed = capsys.readouterr().out
    for word in ("sketches", "cifar100", "imagenet-r", "CC BY", "--data PATH"):
        assert word in printed


def test_partitions_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("partitions", "--json") == 0
    names = [entry["name"] for entry in json.loads(capsys.readouterr().out)]
    assert names == ["dirichlet", "dirichlet-unbalanced", "shards", "iid", "quantity", "natural"]


def test_methods(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("methods", "--json") == 0
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert {"fedavg", "ditto", "fedhip", "local", "global", "fedcof", "majority"} <= entries.keys()
    assert "weighs all alike" in entries["ditto"]["differs"]
    assert entries["fedavg"]["differs"] == "Nothing known."
    assert run("methods") == 0
    assert "differs from its paper" in capsys.readouterr().out


def test_backbones_come_from_the_features_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    features = ModuleType("fedhip.features")
    features.list_backbones = lambda: [SimpleNamespace(name="tiny", description="small [one]")]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fedhip.features", features)
    assert run("backbones") == 0
    printed = capsys.readouterr().out
    assert "tiny" in printed
    assert "small [one]" in printed
