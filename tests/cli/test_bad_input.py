"""Wrong and odd input to every command: the sentence that each gets. A new option or format adds its own lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedhip.cli.common.exit_codes import FAILED, USAGE
from fedhip.cli.common.parser import commands_of
from fedhip.cli.main import build_parser, main
from tests.cli.samples import said

ROWS = 24


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are right, files that are not, and a run."""
    folder = tmp_path_factory.mktemp("bad")
    rng = np.random.default_rng(0)
    labels = np.array(["x", "y"])[np.arange(ROWS) % 2]
    features = rng.normal(size=(ROWS, 3)) + (labels == "y")[:, None]
    clients = np.array(["north", "south", "west"])[np.arange(ROWS) // 8]
    right = {"features": features, "labels": labels, "clients": clients}
    files = {
        "f": right,
        "new": {"features": features[:8] + 0.1, "labels": labels[:8]},
        "single": {**right, "labels": np.full(ROWS, "x")},
        "empty-label": {**right, "labels": np.where(np.arange(ROWS) == 5, " ", labels)},
        "nan": {**right, "features": np.where(np.arange(ROWS)[:, None] == 4, np.nan, features)},
        "wide": {"features": np.ones((4, 5)), "labels": labels[:4]},
        "strangers": {"features": features[:4], "labels": np.array(["x", "y", "x", "z"])},
        "none": {"features": features[:0], "labels": labels[:0]},
        "no-labels": {"features": features},
        "texts": {**right, "features": features.astype(np.str_)},
    }
    for name, arrays in files.items():
        np.savez(folder / f"{name}.npz", **arrays)
    np.savez(folder / "huge.npz", features=features, labels=np.where(np.arange(ROWS) == 3, 1e308, 1.0))
    (folder / "torn.npz").write_bytes((folder / "f.npz").read_bytes()[:300])
    (folder / "text.npz").write_text("features\n")
    ages = [int(age) for age in rng.integers(20, 80, 30)]
    lines = [f"{age},{'ab'[i % 2]},{i % 3 == 0}" for i, age in enumerate(ages)]
    (folder / "t.csv").write_text("\n".join(("age,site,sick", *lines)))
    lines[7] = "33,a,"
    (folder / "holes.csv").write_text("\n".join(("age,site,sick", *lines)))
    (folder / "bytes.csv").write_bytes(b"\xff\xfe\x00age,sick\n1,2\n")
    (folder / "unknown.toml").write_text('featurs = "f.npz"\n')
    (folder / "broken.toml").write_text("features = \n")
    (folder / "wrong.toml").write_text('features = "f.npz"\nseed = [1]\n')
    (folder / "kept.npz").write_bytes(b"precious")
    (folder / "kept.html").write_text("precious")
    (folder / "kept.csv").write_text("precious")
    (folder / "kept.toml").write_text("precious")
    (folder / "parcel.json").write_text('{"kind": "nothing"}')
    (folder / "folder").mkdir()
    for file in ("partition.json", "clients.csv"):
        (folder / "folder" / file).write_text("precious")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("fedhip.runs.report.render_report", lambda _: "<html></html>")
        assert main(["run", "--features", "f.npz", "--out", "run", "--quiet"]) == 0
    return folder


#: What is typed, and what must be said. Those of the first kind are understood, and refused.
REFUSED = {
    "run": "no data given; choose one of --dataset NAME, --data PATH and --features FILE",
    "run --features nothing.npz": "nothing.npz is not there",
    "run --features torn.npz": "torn.npz",
    "run --features text.npz": "text.npz",
    "run --features nan.npz": "features of row 4 hold NaN or infinity; remove this row",
    "run --features none.npz": "give real numbers of shape (N, m)",
    "run --features no-labels.npz": "has no array 'labels'",
    "run --features texts.npz": "give real numbers of shape (N, m)",
    "run --features single.npz": "all rows are of one class, 'x', so there is nothing to tell apart",
    "run --features empty-label.npz": "row 5 has an empty label; say which class it is, or leave such rows out",
    "run --features huge.npz --task regression --clients 2": "of row 3 is 1e+308; give finite numbers up to 1e+30",
    "run --features f.npz --out f.npz": "f.npz",
    "run --features f.npz --out run": "run",
    "run --features f.npz --methods fedhop": "there is no method 'fedhop'",
    "run --features f.npz --clients 0 --partition iid": "0",
    "run --features f.npz --clients 99 --partition iid": "99",
    "run --features f.npz --label sick": "--label names columns of a table",
    "run --features f.npz --head lda --head-options shrinkage=2": "shrinkage",
    "run --features f.npz --fraction-bits 99": "99",
    "run --features f.npz --seed -1": "-1",
    "run --features f.npz --device toaster": "toaster",
    "run --features f.npz --lift-width 8": "--lift-width needs a lift",
    "run --features f.npz --budget much": "the budget is 'much'; give bytes, such as 5MB, 500kB or 500000",
    "run --features f.npz --budget 100": "a budget of 100 bytes holds no upload of 3 features and 2 classes",
    "run --features f.npz --budget 5MB --head ridge": "leave out the head 'ridge'",
    "run --features f.npz --budget 5MB --lift relu": "which finds its own upload; leave out --lift",
    "run --features f.npz --budget 5MB --max-rounds 8": "which finds its own upload; leave out --max-rounds",
    "run --features f.npz --max-rounds 0": "max_rounds is 0; give a whole number of at least 1",
    "run --data t.csv --label ill": "ill",
    "run --data holes.csv --label sick": "row 8, column 'sick': the label is missing; fill it in, or remove the row",
    "run --data bytes.csv --label sick": "bytes.csv",
    "run --data nothing.csv --label sick": "nothing.csv",
    "run unknown.toml": "there is no option 'featurs'; did you mean 'features'?",
    "run broken.toml": "broken.toml is not a TOML file",
    "run wrong.toml": "'seed' must be a string, a number, true, false or a list of strings",
    "run nothing.toml": "there is no configuration file nothing.toml",
    "show nothing": "there is no run folder nothing",
    "show folder": "folder is not a run folder: it has no results.json",
    "describe nothing.csv": "nothing.csv",
    "describe t.csv kept.toml": "kept.toml is there already; write over it with --force",
    "describe t.csv --label ill": "ill",
    "report nothing": "there is no run folder nothing",
    "report run --html kept.html": "kept.html is there already; write over it with --force",
    "report run --tables folder": "clients.csv is there already; write over it with --force",
    "report run --out kept.html": "kept.html is there already; write over it with --force",
    "report run --html folder": "folder is a folder; give the name of a file",
    "predict run --features new.npz --client zzz": "no client 'zzz'; there are 3: north, south, west; for the global "
    "model, give --global",
    "predict run --features new.npz --client North": "near it: 'north'",
    "predict run --features new.npz --client=": "the run has no client ''",
    "predict run --features wide.npz": "5",
    "predict run --features new.npz --coverage 1.5": "1.5",
    "predict run --features new.npz --csv kept.csv": "kept.csv is there already; write over it with --force",
    "predict run --features new.npz --csv answers.txt": "answers are written as .csv",
    "predict run": "no image given",
    "predict nothing --features new.npz": "there is no run folder nothing",
    "export run kept.npz": "an ONNX file ends in .onnx",
    "export run model.onnx --client zzz --head-only": "the run has no client 'zzz'",
    "join run --client= --features new.npz": "the name '' is empty; give the client another",
    "join run --client ../x --features new.npz": "the name '../x' reads as a path; give the client another",
    "join run --client a\nb --features new.npz": "has a line break or another control character in it",
    "join run --client north --features new.npz": "client 'north' is in the run already",
    "join run --client east --features strangers.npz": "has a class 'z', which is none of the run's 2 classes",
    "join run --client east --features wide.npz": "5",
    "join run --features new.npz": "does not say whose rows these are; name the client with --client",
    "update run --client nort --features new.npz": "the run has no client 'nort'; near it: 'north'",
    "forget run --client zzz": "the run has no client 'zzz'",
    "personalize run --client zzz": "the run has no client 'zzz'",
    "influence run --csv kept.csv": "kept.csv is there already; write over it with --force",
    "influence nothing": "there is no run folder nothing",
    "verify nothing": "there is no run folder nothing",
    "audit --features nothing.npz": "nothing.npz is not there",
    "audit --features new.npz --sites 1": "1",
    "audit --features new.npz --seconds 0": "--seconds 0 is no time to search in",
    "audit --features new.npz kept.html": "kept.html is there already; write over it with --force",
    "reproduce table9 --features f.npz": "table9",
    "reproduce table1 --features f.npz --network deep": "there is no network 'deep'",
    "reproduce table1 --features f.npz --jobs 0": "at least 1, not 0",
    "reproduce table1 --features f.npz --styles": "--styles is for fine-tuning alone",
    "reproduce natural --part 2 3": "--part has no effect on natural",
    "reproduce fine-tuning --features f.npz": "networks are trained on images",
    "reproduce fine-tuning --features f.npz --protocol tuned": "--protocol has no effect on fine-tuning",
    "partition --features f.npz --out folder": "partition.json is there already; write over it with --force",
    "extract fresh.npz --dataset sketchs": "did you mean 'sketches'?",
    "extract kept.npz --dataset sketches": "kept.npz is there already; write over it with --force",
    "extract --dataset sketches --out kept.npz": "kept.npz is there already; write over it with --force",
    "extract new.txt --dataset sketches": "a feature file ends in .npz or .safetensors",
    "pretrain --pool nothing --out new --steps 1": "nothing",
    "cache list --site folder": "folder is no folder of a site",
    "cache clear --site folder": "folder is no folder of a site",
    "cache clear --run nothing": "there is no run folder nothing",
    "federation init fed --name demo --site a --site a --classes x,y --width 4": "'a'",
    "federation init fed --name demo --site a --site b --site c --classes x --width 4": "class",
    "federation init fed --name demo --site a --site b --site c --classes x,y --width 4 --beta 1e308": "beta is 1e+308",
    "federation init fed --name ../x --site a --site b --site c --classes x,y --width 4": "../x",
    "federation accept parcel.json": "parcel.json",
    "federation accept nothing.json": "nothing.json",
    "federation enroll folder parcel.json": "folder is no folder of a federation",
    "federation fingerprint folder": "folder is no site's folder, no coordinator's folder and no parcel",
    "federation serve folder": "folder is no folder of a federation",
    "federation serve folder --json": "--json is for --background",
    "federation serve folder --status-port 70000": "--status-port 70000 is no port; give one from 1 to 65535",
    "federation serve folder --status-host x": "--status-host is of the coordinator's page; give --status-port too",
    "federation site folder --features f.npz": "folder",
    "federation run folder": "folder is no folder of a federation",
    "federation status folder": "folder is no folder of a federation",
    "federation stop nothing": "there is no folder nothing",
    "federation renew folder": "folder is no folder of a federation",
    "federation open-commitment folder opening": "folder",
    "verify-commitment nothing.opening nothing.json --federation folder": "there is no file folder/federation.toml",
}

#: These are not understood.
MISTYPED = {
    "rn": "fedhip: there is no command 'rn'; did you mean 'run'?",
    "federation int": "fedhip federation: there is no command 'int'; did you mean 'init'?",
    "run --feat f.npz": "there is no --feat; did you mean '--features'?",
    "run --features f.npz --alpha 1e308": "'1e308' is neither 'loo' nor a number from 0 to 1e+30",
    "run --features f.npz --alpha nan": "'nan' is neither 'loo' nor a number from 0 to 1e+30",
    "run --features f.npz --beta 1e308": "'1e308' is neither 'auto' nor 'gcv' nor a number from 0 to 1e+30",
    "run --features f.npz --beta -1": "--beta",
    "run --features f.npz --seed x": "--seed",
    "run --features f.npz --partition none": "--partition",
    "run --features": "--features",
    "show": "RUN",
    "describe": "TABLE",
    "report": "RUN",
    "predict run --features new.npz --top -1": "'-1' is no whole number of at least 1",
    "predict run --features new.npz --top 0": "'0' is no whole number of at least 1",
    "predict run --features new.npz --client a --global": "not allowed with argument",
    "predict run --features new.npz --client=--": "'--' is no value",
    "export run": "FILE",
    "join run": "--data",
    "update run --features new.npz": "--client",
    "forget run": "--client",
    "personalize": "RUN",
    "verify run --recipt x": "did you mean '--receipt'?",
    "audit": "--data",
    "reproduce": "STUDY",
    "reproduce table1 --features f.npz --part 0 3": "argument --part: '0' is no whole number of at least 1",
    "partition --features f.npz --clients x": "--clients",
    "extract --dataset sketches": "the following arguments are required: FILE",
    "extract a.npz --dataset sketches --out b.npz": "a.npz and --out b.npz are two names for one thing",
    "describe t.csv a.toml b.toml": "b.toml",
    "pretrain --pool nothing --out new": "--steps",
    "list everything": "everything",
    "cache clear --older-than -1": "'-1' is no number of days; give one of at least 0",
    "cache list --older-than 1": "--older-than",
    "doctor now": "now",
    "completion fish": "fish",
    "federation init fed": "--name",
    "federation accept": "PARCEL",
    "federation enroll folder": "FILE",
    "federation fingerprint": "PATH",
    "federation serve folder --port x": "--port",
    "federation serve folder --status-port x": "--status-port",
    "federation site folder": "--data",
    "federation run": "DIR",
    "federation status": "DIR",
    "federation stop": "DIR",
    "federation renew folder --days x": "--days",
    "federation open-commitment folder": "FILE",
    "verify-commitment nothing.opening": "COMMITMENT",
}


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def before(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the engine's packages, on import
@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused_says_why_and_leaves_everything_as_it_was(
    words: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = before(place)
    assert main(words.split(" ")) == FAILED
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = [line for line in shown.err.splitlines() if "█" not in line]
    assert len(lines) == 1, lines
    assert lines[0].startswith("fedhip: ")
    assert REFUSED[words] in lines[0]
    assert before(place) == there


@pytest.mark.parametrize("words", MISTYPED)
def test_what_is_not_understood_says_where_help_is(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words.split(" "))
    assert stop.value.code == USAGE
    (line,) = said(capsys)
    assert MISTYPED[words] in line
    assert line.endswith(" --help)")


def test_every_command_is_in_the_tables() -> None:
    for parser in commands_of(build_parser()):
        command = parser.prog.removeprefix("fedhip ")
        assert any(f"{words} ".startswith(f"{command} ") for words in (*REFUSED, *MISTYPED)), command
