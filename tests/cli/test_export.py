"""`fedhip export`: which model, where to, and what is said of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from fedhip import FedHiPError
from fedhip.cli.main import main
from fedhip.heads.model import Model

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")


def constant(client: str | None, value: float) -> Model:
    """A model whose every score is `value` times the sum of the features."""
    weights = torch.full((4, 2), value, dtype=torch.float64)
    return Model(client, weights, ("a", "b"), 1.0, 0.1, 1.0, torch.ones(2, dtype=torch.bool), False, None, "total")


class Run:
    """A run of two clients."""

    opened: Path

    @classmethod
    def open(cls, path: Path) -> Run:
        cls.opened = path
        return cls()

    def model(self, client: str | None) -> Model:
        models = {None: constant(None, 1.0), "site-3": constant("site-3", 3.0)}
        if client not in models:
            raise FedHiPError(f"the run has no client {client!r}; its clients: site-3")
        return models[client]


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("fedhip.runs")
    module.Run = Run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fedhip.runs", module)


def score(path: Path) -> float:
    scores = onnxruntime.InferenceSession(path).run(["scores"], {"features": np.full((1, 4), 0.5, np.float32)})[0]
    return float(scores[0, 0])


@pytest.mark.parametrize(
    ("options", "who", "expected"),
    [([], "the global model", 2.0), (["--client", "site-3"], "the model of client 'site-3'", 6.0)],
)
def test_whose_model_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], who: str, expected: float
) -> None:
    out = tmp_path / "new" / "model.onnx"
    assert main(["export", "some/run", str(out), "--head-only", *options]) == 0
    assert Run.opened == Path("some/run")
    assert score(out) == expected
    first, second = capsys.readouterr().out.splitlines()
    written = f"{who}, without a backbone, written to {out} ({out.stat().st_size} bytes; differs by "
    assert first.startswith(written)
    assert re.fullmatch(r"\d\.\de-0\d in onnxruntime\)", first.removeprefix(written))
    assert second == ("input 'features': float32 (batch, 4); outputs 'scores' and 'probabilities': float32 (batch, 2)")


def test_a_file_that_is_there_is_kept_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model.onnx"
    out.write_text("mine")
    assert main(["export", "run", str(out), "--head-only"]) == 3
    assert "is there already; write over it with --force" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert main(["export", "run", str(out), "--head-only", "--force"]) == 0
    assert score(out) == 2.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "{}/model.onnx", "--client", "nobody", "--head-only"], "the run has no client 'nobody'"),
        (["run", "{}/model.onnx"], "made from given features, without a backbone; export the head alone (--head-only)"),
        (["{}/model.onnx", "run"], "an ONNX file ends in .onnx"),
        (["run", "{}/file/model.onnx", "--head-only"], "is a file, not a folder"),
        (["run", "{}/model.onnx", "--head-only", "--weights", "w"], "leave the weights w out"),
    ],
)
def test_refusals_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (tmp_path / "file").touch()
    assert main(["export", *(word.format(tmp_path) for word in arguments)]) == 3
    shown = capsys.readouterr()
    assert message in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.filterwarnings("default")
def test_a_file_that_was_not_checked_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["export", "run", str(tmp_path / "model.onnx"), "--head-only"]) == 0
    shown = capsys.readouterr()
    assert shown.err == (
        f"fedhip: warning: {tmp_path / 'model.onnx'} was not checked: onnxruntime is not installed; "
        "pip install 'fedhip[onnx]'\n"
    )
    assert "; not checked)" in shown.out
