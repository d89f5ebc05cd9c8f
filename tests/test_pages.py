"""The pages of the documentation do what they say, and are all there."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from pathlib import Path

import polars
import pytest
from sklearn.datasets import load_breast_cancer

import fedhip
from scripts import draw_pictures
from tests.pages import DOCS, ROOT, blocks, follow, run

PACKAGE = ROOT / "src" / "fedhip"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A checkout to change: the sources as links, but those that a page patches."""
    for name in ("src", "tests"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, copy_function=os.symlink, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for patched in ("methods/__init__.py", "data/sets/registry.py", "features/backbones.py"):
        link = tmp_path / "src" / "fedhip" / patched
        link.unlink()
        shutil.copy(PACKAGE / patched, link)
    return tmp_path


def follow_in(sources: Path, page: str) -> str:
    return follow(DOCS / "maintain" / page, sources, PYTHONPATH="src", FEDHIP_CACHE=str(sources / "cache"))


@pytest.mark.slow
def test_how_to_add_a_method(sources: Path) -> None:
    assert "1 passed" in follow_in(sources, "add-a-method.md")


@pytest.mark.slow
def test_how_to_add_a_data_set(sources: Path) -> None:
    assert "comes with scikit-learn" in follow_in(sources, "add-a-data-set.md")
    assert (sources / "divided" / "partition.json").is_file()


@pytest.mark.slow
def test_how_to_add_a_backbone(sources: Path) -> None:
    assert "pixels:16" in follow_in(sources, "add-a-backbone.md")


@pytest.mark.slow
def test_the_tutorial_on_images(tmp_path: Path) -> None:
    told = follow(DOCS / "tutorials" / "images.md", tmp_path, FEDHIP_CACHE=str(tmp_path / "cache"))
    for text in (
        "sites · 5 clients, natural",
        "the model of client 'bern'",
        "client 'chur' is forgotten",
        "phase 3 again for 1 of 5 clients",
        "all is well",
    ):
        assert text in told
    assert (tmp_path / "bern.onnx").is_file()
    (served,) = blocks(DOCS / "howto" / "serve-predictions.md", "python")
    assert run([sys.executable, "-c", served], tmp_path, {}).strip() == "digit-0"


@pytest.mark.slow
def test_the_tutorial_on_embeddings(tmp_path: Path) -> None:
    told = follow(DOCS / "tutorials" / "embeddings.md", tmp_path)
    for text in ("paragraphs of 20 modules", "20 clients, natural", "client 'newcomer' joined", "all is well"):
        assert text in told


@pytest.mark.slow
def test_the_tutorial_on_a_federation(tmp_path: Path) -> None:
    text = (DOCS / "tutorials" / "federation.md").read_text(encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:  # so that two can follow it at once
        text = text.replace("--port 8443", f"--port {free.getsockname()[1]}")
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    try:
        told = follow(page, tmp_path)
    finally:
        for place in ("site-north", "site-south", "site-west", "."):
            if (tmp_path / "fed" / place).is_dir():
                run(["fedhip", "federation", "stop", str(tmp_path / "fed" / place)], tmp_path, {})
    for shown in (
        "north 190 rows",
        "the round is finished",
        "the model of client 'north'",
        "north, south, west has digest",
    ):
        assert shown in told


@pytest.mark.slow
def test_the_tutorial_on_a_table(tmp_path: Path) -> None:
    page = DOCS / "tutorials" / "table.md"
    told = follow(page, tmp_path)
    lines = page.read_text(encoding="utf-8").splitlines()
    columns = next(line.strip() for line in lines if "columns: 3 numbers" in line)
    for text in (
        "patients · 3 clients, natural",
        columns,
        "69 rows answered by each client's own model: answers.csv",
        "the model of client 'north'",
        "wrote columns.toml",
        "client 'east' joined with 48 training rows",
        "all is well",
    ):
        assert text in told
    assert "mm" in (tmp_path / "described" / "columns.toml").read_text(encoding="utf-8")
    # Python's last lines are the command's model, which asks no more of a machine than that both are made on it.
    new = polars.read_csv(tmp_path / "new.csv")
    assert f"{fedhip.open_run(tmp_path / 'run').predict(new, client='north')[:3]}\n" in told
    data = load_breast_cancer()
    answers = polars.read_csv(tmp_path / "answers.csv")["class"].to_numpy()
    assert (answers == data.target_names[data.target[500:]]).mean() > 0.85


@pytest.mark.slow
def test_the_tutorial_on_text(tmp_path: Path) -> None:
    page = DOCS / "tutorials" / "text.md"
    told = follow(page, tmp_path, FEDHIP_CACHE=str(tmp_path / "cache"))
    for text in (
        "tickets · 4 clients, natural, seed 0 · a table with text by minilm, 385 wide",
        "columns: 1 number and 1 text → 385 features; see run/columns.toml",
        "20 rows answered by each client's own model: answers.csv",
        "berlin delivery\nmadrid repair\n",
    ):
        assert text in told
    methods = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))["methods"]
    global_model, own = (methods[name]["accuracy"]["mean"] for name in ("global", "fedhip"))
    assert own > global_model + 0.05


@pytest.mark.parametrize(
    "page",
    [
        "quickstart.md",
        "howto/choose-alpha-and-beta.md",
        pytest.param("howto/use-python.md", marks=pytest.mark.slow),
        "howto/with-differential-privacy.md",
    ],
)
@pytest.mark.usefixtures("no_report")
def test_python_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    found = blocks(DOCS / page, "python")
    assert found
    for block in found:
        exec(compile(block, page, "exec"), names)  # noqa: S102
    for line in capsys.readouterr().out.splitlines():
        assert line in (DOCS / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", draw_pictures.SCHEMES)
def test_pictures_are_those_of_their_script(name: str) -> None:
    assert (DOCS / "pictures" / name).read_text(encoding="utf-8") == draw_pictures.SCHEMES[name]()
