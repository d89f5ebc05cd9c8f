"""The doctor finds what is there, what is missing and what is broken, and survives all of it."""

from __future__ import annotations

import builtins
import importlib
import json
import os
import re
import socket
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fedhip
from fedhip import doctor
from fedhip.cli.main import main
from fedhip.data.sets import registry
from fedhip.doctor import Diagnosis, examine
from fedhip.features import backbones, extraction
from fedhip.utils.parallel import memory_available


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDHIP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the doctor went to the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def named(name: str) -> Diagnosis:
    (found,) = [finding for finding in examine() if finding.name == name]
    return found


def test_the_tables_are_those_of_the_package() -> None:
    """Every dependency and extra that pyproject.toml names, and no other."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    declared = {"": project["dependencies"]} | project["optional-dependencies"]
    del declared["dev"], declared["docs"]  # of those who change the package
    named = [(text, extra) for extra, texts in declared.items() for text in texts if not text.startswith("fedhip[")]
    expected = {(re.split("[>=]", text)[0], extra or None) for text, extra in named}
    assert {(package.name, package.extra) for package in doctor.PACKAGES} == expected


def test_a_sound_installation(own_cache: Path) -> None:
    findings = examine()
    assert not [finding for finding in findings if finding.fatal]
    states = {finding.name: finding.state for finding in findings}
    assert states["fedhip-vit"] == states["sketches"] == states["python"] == states["cpu"] == states["cache"] == "ok"
    assert named("torch").detail.startswith(metadata.version("torch"))
    assert named("fedhip").detail.startswith(f"{fedhip.__version__} in ")
    assert named("sketches").detail == f"in the package, {registry.SKETCHES.stat().st_size / 1e6:.1f} MB"
    assert all(finding.remedy for finding in findings if finding.state == "broken")
    assert not own_cache.exists()  # looked at, and not made


def uninstalled(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    version = metadata.version

    def lookup(name: str) -> str:
        if name in names:
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", lookup)


def unimportable(monkeypatch: pytest.MonkeyPatch, name: str, error: Exception) -> None:
    load = importlib.import_module

    def fails(module: str, package: str | None = None) -> Any:
        if module == name:
            raise error
        return load(module, package)

    monkeypatch.setattr(importlib, "import_module", fails)


@pytest.mark.parametrize(
    ("package", "state", "remedy", "code"),
    [
        ("onnxscript", "missing", "pip install 'fedhip[onnx]'", 0),
        ("transformers", "missing", "pip install 'fedhip[hf]'", 0),
        ("scikit-learn", "missing", "pip install 'fedhip[sklearn]'", 0),
        ("matplotlib", "missing", "pip install 'matplotlib>=3.8'", 0),
        ("safetensors", "broken", "pip install 'safetensors>=0.4.3'", 1),
    ],
)
def test_a_package_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    package: str,
    state: str,
    remedy: str,
    code: int,
) -> None:
    uninstalled(monkeypatch, package)
    found = named(package)
    assert (found.state, found.remedy) == (state, remedy)
    assert found.detail.startswith("not installed (")
    assert main(["doctor"]) == code
    assert remedy in capsys.readouterr().out


@pytest.mark.parametrize(("package", "module", "code"), [("pillow", "PIL", 1), ("onnx", "onnx", 0)])
def test_a_package_that_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], package: str, module: str, code: int
) -> None:
    unimportable(monkeypatch, module, OSError("libsomething.so: no such file\nand more lines"))
    found = named(package)
    assert found.state == "broken"
    assert f"{metadata.version(package)} cannot be imported: OSError: libsomething.so: no such file (" in found.detail
    assert found.remedy.startswith(f"pip install --force-reinstall '{package}>=")
    assert main(["doctor", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["ok"] is (code == 0)


def test_a_package_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "2.4.1+cpu" if name == "torch" else version(name))
    found = named("torch")
    assert (found.state, found.fatal) == ("broken", True)
    assert found.detail.startswith("2.4.1+cpu is too old")
    assert found.remedy == "pip install --upgrade 'torch>=2.5'"


def test_another_engine_than_the_one_that_federations_are_tested_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer ones too: flwr is pinned, since its inside is used."""
    version = metadata.version
    for other in ("1.42.0", "1.40.0"):
        monkeypatch.setattr(metadata, "version", lambda name, other=other: other if name == "flwr" else version(name))
        found = named("flwr")
        assert (found.state, found.fatal) == ("broken", False)
        assert found.detail.startswith(f"{other} is another version than 1.41.0")
        assert found.remedy == "pip install 'flwr==1.41.0'"


def test_bounds_are_compared_as_numbers() -> None:
    assert doctor.numbers("2.13.0+cpu") > doctor.numbers("2.5")
    assert doctor.numbers("2.5.0rc1") > doctor.numbers("2.5") > doctor.numbers("2.4.9")
    assert doctor.numbers("unknown") == doctor.numbers("") == ()


def test_a_copy_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a folder of sources: no bounds are known, and all is still looked at."""

    def absent(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", absent)
    assert doctor.declared_versions() == {}
    assert named("torch").state == "ok"


def test_a_look_that_fails_is_a_finding_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load = builtins.__import__

    def no_torch(name: str, *rest: Any) -> Any:
        if name == "torch" and rest[0] and rest[0].get("__name__") == "fedhip.doctor":
            raise ImportError("undefined symbol\nsecond line")
        return load(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_torch)
    found = named("device")
    assert (found.state, found.detail, found.fatal) == ("broken", "ImportError: undefined symbol", True)
    assert named("sketches").state == "ok"
    assert main(["doctor"]) == 1
    assert "fedhip run cannot work: device" in capsys.readouterr().out


def test_the_cache_is_counted(own_cache: Path) -> None:
    assert named("cache").detail == f"{own_cache}, which is made when it is needed"
    for key in ("aa", "bb"):
        (own_cache / "features" / key).mkdir(parents=True)
        (own_cache / "features" / key / "0-9.npy").write_bytes(bytes(1500))
    (own_cache / "features" / "note").write_bytes(bytes(10))
    (own_cache / "weights").write_bytes(bytes(240))
    assert named("cache").detail.startswith(f"{own_cache}: 2 feature sets, 3.2 kB; ")
    assert sorted(path.name for path in own_cache.iterdir()) == ["features", "weights"]


def test_a_cache_that_cannot_be_used_is_one_line_and_no_reason_to_stop(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_cache.write_text("a file")
    assert named("cache").state == "broken"
    monkeypatch.setenv("FEDHIP_CACHE", str(own_cache / "below"))
    found = named("cache")
    assert (found.state, found.needed) == ("broken", False)
    assert "is a file, not a folder" in found.detail
    assert found.remedy.startswith("set FEDHIP_CACHE")
    assert main(["doctor"]) == 0
    capsys.readouterr()


def test_a_cache_that_cannot_be_written_to(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The superuser writes everywhere, and so the refusal is played."""
    own_cache.mkdir()

    def refuse(path: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(extraction, "whole_file", refuse)
    found = named("cache")
    assert (found.state, found.needed) == ("broken", False)
    assert "cannot be used (Permission denied)" in found.detail


def test_a_cache_that_cannot_be_read(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The superuser reads everything, and so the refusal is played."""
    (own_cache / "features").mkdir(parents=True)
    scan = os.scandir

    def refuse(path: Any = ".") -> Any:
        if str(path) == str(own_cache / "features"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = named("cache")
    assert found.state == "broken"
    assert "Permission denied" in found.detail


def test_embedded_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbones, "embedded_weights", lambda: tmp_path / "w.safetensors")
    missing = named("fedhip-vit")
    assert (missing.fatal, missing.detail) == (True, "the package holds no w.safetensors")
    (tmp_path / "w.safetensors").write_bytes(b"half of it")
    damaged = named("backbone")
    assert damaged.fatal
    assert "SafetensorError" in damaged.detail


def test_embedded_sketches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SKETCHES", tmp_path / "sketches.npz")
    assert named("sketches").fatal
    assert named("sketches").detail.endswith("is not there")
    (tmp_path / "sketches.npz").write_bytes(b"half of it")
    assert named("sketches").detail.endswith("is damaged")


def test_cifar100(own_cache: Path) -> None:
    absent = named("cifar100")
    assert (absent.state, absent.needed) == ("missing", False)
    assert "fedhip run --dataset cifar100" in absent.remedy
    folder = own_cache / "cifar-100-python"
    folder.mkdir(parents=True)
    (folder / "train").touch()
    assert (named("cifar100").state, named("cifar100").fatal) == ("broken", False)
    for name in ("test", "meta"):
        (folder / name).touch()
    assert (named("cifar100").state, named("cifar100").detail) == ("ok", f"in {folder}")


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert [(f.name, f.state) for f in doctor.devices()] == [("cpu", "ok"), ("gpu", "missing")]
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert [f.name for f in doctor.devices()] == ["cpu", "mps"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    card = SimpleNamespace(name="Card", total_memory=80_000_000_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    found = list(doctor.devices())
    assert [f.name for f in found] == ["cpu", "cuda:0", "cuda:1"]
    assert found[1].detail == "Card, 80.0 GB"


def test_memory(tmp_path: Path) -> None:
    limit, meminfo = tmp_path / "memory.max", tmp_path / "meminfo"
    whole = doctor.memory_total(tmp_path / "none")
    assert whole is None or whole > 10**8
    limit.write_text("1048576\n")
    assert doctor.memory_total(limit) == 1048576
    limit.write_text("max\n")
    assert doctor.memory_total(limit) == whole
    assert memory_available(meminfo) is None
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:    2048 kB\n")
    assert memory_available(meminfo) == 2097152


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> list[Diagnosis]:
        return [
            Diagnosis("versions", "good", "ok", "1.0", needed=True),
            Diagnosis("versions", "extra", "missing", "not installed", "pip install extra"),
            Diagnosis("files", "bad", "broken", "in pieces", "mend it", needed=True),
        ]

    monkeypatch.setattr(doctor, "examine", found)
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    shown = [re.split(r"\s{2,}", line.strip()) for line in lines if re.match(r"\s+[✓–✗]", line)]
    assert shown == [
        ["✓", "good", "1.0"],
        ["–", "extra", "not installed", "pip install extra"],
        ["✗", "bad", "in pieces", "mend it"],
    ]
    assert lines[-1] == "fedhip run cannot work: bad"
    assert main(["doctor", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert told["findings"][2] == {
        "area": "files", "name": "bad", "state": "broken", "detail": "in pieces", "remedy": "mend it", "needed": True,
    }  # fmt: skip
    monkeypatch.setattr(doctor, "examine", lambda: found()[:2])
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "fedhip run can work"


def test_a_generator_that_fails_half_way_keeps_what_it_found() -> None:
    def half() -> Iterator[Diagnosis]:
        yield Diagnosis("a", "first", "ok", "there")
        raise ValueError

    found = list(doctor.guarded("a", "rest", True, "mend it", half))
    assert [(f.name, f.detail) for f in found] == [("first", "there"), ("rest", "ValueError")]
