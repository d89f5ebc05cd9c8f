"""Figures: equal numbers, equal files; and nothing that matplotlib warns of."""

from __future__ import annotations

import builtins
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from fedhip.reproduce import STUDIES, reproduce
from fedhip.reproduce.figures import line_styles
from tests.reproduce.fakes import bench_of, pretend

pytestmark = pytest.mark.usefixtures("pictures")


@pytest.mark.slow
def test_equal_numbers_give_equal_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    for name in ("one", "two"):
        reproduce(bench_of(tmp_path, regimes=("paper", "tuned")), STUDIES, tmp_path / name)
    pictures = sorted(path.name for path in (tmp_path / "one").iterdir() if path.suffix in (".svg", ".pdf"))
    assert pictures == sorted(
        f"{name}.{kind}"
        for kind in ("svg", "pdf")
        for name in (
            "table1-paper", "table1-tuned", "alpha", "beta", "efficiency-paper", "efficiency-tuned",
            "invariance-paper", "invariance-tuned",
        )
    )  # fmt: skip
    for name in pictures:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    for path in (tmp_path / "one").glob("*.svg"):
        assert ET.parse(path).getroot().tag.endswith("svg")  # noqa: S314


def test_methods_look_different() -> None:
    names = [f"method {i}" for i in range(15)]
    found = line_styles([*names, "fedhip"])
    assert len({(look.colour, look.dashes) for look in found.values()}) == 16
    assert len({(look.colour, look.mark) for look in found.values()}) == 16
    assert found["fedhip"].own


def test_tables_are_written_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    real = builtins.__import__

    def refuse(name: str, *args: Any, **more: Any) -> Any:
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.warns(UserWarning, match="no figures: drawing needs matplotlib"):
        _, files = reproduce(bench_of(tmp_path, seeds=(0,)), ("alpha",), tmp_path / "out")
    assert {path.suffix for path in files} == {".csv", ".json", ".md", ".tex"}


def test_a_federation_in_which_all_rivals_diverge_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, diverge=lambda name, protocol: True)
    bench = bench_of(tmp_path, seeds=(0,))
    _, files = reproduce(bench, STUDIES, tmp_path / "out")
    assert sum(path.suffix == ".pdf" for path in files) == 5
