"""`--head` at the command line: run, live, predict, export, verify, and what is refused."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedhip.runs import Run
from tests.cli.samples import done, refused
from tests.runs.samples import CLASSES, EXACT, contents, feature_file, rows_of

beyond = pytest.mark.parametrize("head", ["lda", "logistic"])


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return feature_file(tmp_path / "sites.npz", rows=30)


@beyond
def test_a_run_of_another_head_from_its_table_to_its_life(
    sites: Path, head: str, capsys: pytest.CaptureFixture[str]
) -> None:
    method, title = f"fedhip-{head}", f"FedHiP-{head.upper() if head == 'lda' else head}"
    done("run", "--features", sites, "--head", head, "--methods", "global", "--out", "run")
    shown = capsys.readouterr().out
    assert f"models: {title};" in shown
    folder = Run.open("run")
    assert list(folder.results["methods"]) == ["global", method]
    assert tomllib.loads(Path("run/config.toml").read_text())["head"] == head
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert f"of the head <code>{head}</code> ({title}" in page

    done("run", "run/config.toml", "--out", "again")
    assert contents(Path("run"), EXACT) == contents(Path("again"), EXACT)

    capsys.readouterr()
    done("predict", "run", "--client", "north", "--features", sites, "--json")
    rows = json.loads(capsys.readouterr().out)["rows"]
    model = folder.model("north")
    with np.load(sites) as data:
        expected = model.scores(data["features"]).argmax(dim=1).numpy()
    assert [row["class"] for row in rows] == [CLASSES[label] for label in expected]
    done("export", "run", "north.onnx", "--client", "north", "--head-only")

    done("join", "run", "--features", feature_file(Path("east.npz"), ["east"], rows=30))
    told = capsys.readouterr().out
    assert ("the objective is that of those present" in told) == (head == "logistic")
    # East's rows are not in the run's data: the sum without them is had without them.
    done("forget", "run", "--client", "east")
    done("personalize", "run")
    assert contents(Path("run"), EXACT) == contents(Path("again"), EXACT)
    done("verify", "run")


def test_a_run_without_options_is_chosen_on_training_rows_said_and_repeated(
    sites: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done("run", "--features", sites, "--out", "run")
    run = Run.open("run")
    told = run.results["choice"]
    said = f"Chosen by cross-validation on {told['rows']:,} training rows:"
    assert said in " ".join(capsys.readouterr().out.split())
    assert said in Path("run/report.html").read_text(encoding="utf-8")
    assert "Which model was chosen" in Path("run/report.html").read_text(encoding="utf-8")
    assert run.head.name == "auto"
    assert list(run.results["methods"]) == ["auto", "majority", "local", "global", "fedhip"]
    assert {told["features"], told["model"]} <= {
        entry[key] for entry in told["candidates"] for key in ("features", "model")
    }
    done("run", "run/config.toml", "--out", "again")
    assert contents(Path("run"), EXACT) == contents(Path("again"), EXACT)
    assert Run.open("again").results["choice"] == told
    done("verify", "run")


def test_the_ridges_beside_a_choice_are_those_of_a_run_of_ridges(sites: Path) -> None:
    done("run", "--features", sites, "--out", "run")
    done("run", "--features", sites, "--methods", "local,global,fedhip", "--out", "ridges")
    chosen, ridges = (Run.open(name).results["methods"] for name in ("run", "ridges"))
    for method in ("majority", "local", "global", "fedhip"):
        for mine, theirs in zip(chosen[method]["per_client"], ridges[method]["per_client"], strict=True):
            assert mine == theirs
    assert Run.open("ridges").head.name == "ridge"
    assert "choice" not in Run.open("ridges").results


@pytest.mark.parametrize(
    "words",
    [
        ("--head", "ridge"),
        ("--methods", "fedhip"),
        ("--beta", "3"),
        ("--no-standardize",),
        ("--no-intercept",),
        ("--balance",),
        ("--head", "ridge", "--no-recommend"),
    ],
    ids=" ".join,
)
def test_what_is_a_ridges_alone_asks_for_one(sites: Path, words: tuple[str, ...]) -> None:
    done("run", "--features", sites, *words, "--out", "run")
    assert Run.open("run").head.name == "ridge"
    assert "choice" not in Run.open("run").results


def test_parts_of_the_choice_are_pinned(sites: Path) -> None:
    done(
        "run",
        "--features",
        sites,
        "--alpha",
        "2",
        "--prior",
        "none",
        "--lift",
        "relu",
        "--lift-width",
        "9",
        "--out",
        "run",
    )
    run = Run.open("run")
    assert run.head.name == "auto"
    assert run.lift is not None
    assert run.lift.width == 9
    assert {entry["features"] for entry in run.results["choice"]["candidates"]} == {"as they are"}
    for client in run.clients:
        assert run.model(client).alpha in (0.0, 2.0)
        assert all(prior.is_none for prior in run.priors(client).values())
    done("verify", "run")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--max-rounds", "0"), "max_rounds is 0; give a whole number of at least 1"),
        (("--max-rounds", "8", "--head", "lda"), "--max-rounds is what the choice may take"),
        (("--head-options", "shrinkage=0.1"), "options of a head (--head-options) are of"),
        (("--balance", "--head", "auto"), "leave out --head auto, or --balance"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else "",
)
def test_what_contradicts_the_choice_is_refused_in_one_line(
    sites: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], line: str
) -> None:
    assert line in refused(capsys, "run", "--features", sites, *words, "--out", "run")
    assert not Path("run").exists()


def test_rows_of_a_client_that_joined_are_given_by_file(sites: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done("run", "--features", sites, "--head", "logistic", "--out", "run")
    east = feature_file(Path("east.npz"), ["east"], rows=30)
    done("join", "run", "--features", east)
    before = contents(Path("run"))
    line = refused(capsys, "forget", "run", "--client", "west")
    assert "the rows of 'east' are not in the run's own data; give them with --rows FILE" in line
    assert contents(Path("run")) == before
    done("forget", "run", "--client", "west", "--rows", east)
    assert Run.open("run").clients == ["north", "south", "east"]
    F, y = rows_of("north", 6, 9)
    np.savez("more.npz", features=F, labels=y, class_names=np.array(CLASSES))
    done("update", "run", "--client", "north", "--features", "more.npz", "--rows", east)
    assert Run.open("run").statistics("north").num_samples == 24 + 6
    done("verify", "run")


def test_where_no_rows_are_needed_none_are_taken(sites: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done("run", "--features", sites, "--head", "lda", "--out", "run")
    assert "solved without rows; leave --rows out" in refused(
        capsys, "forget", "run", "--client", "west", "--rows", sites
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--head", "lda", "--head-options", "shrinkage"), "'shrinkage'; give NAME=NUMBER"),
        (("--head", "lda", "--head-options", "shrinkage=much"), "'shrinkage=much'; give NAME=NUMBER"),
        (("--head", "lda", "--head-options", "shrinkge=0.1"), "no option 'shrinkge'; did you mean 'shrinkage'?"),
        (("--head", "lda", "--head-options", "shrinkage=2"), "give a number of at most 1"),
        (("--head", "logistic", "--head-options", "gradient_rounds=0"), "give a whole number of at least 1"),
        (("--head-options", "penalty=1"), "(--head-options) are of --head lda and --head logistic"),
        (("--head", "auto", "--head-options", "penalty=1"), "and --head auto finds its own"),
        (("--head", "auto", "--balance"), "leave out --head auto, or --balance"),
    ],
)
def test_options_of_heads_are_checked_before_any_work(
    sites: Path, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, "run", "--features", sites, *words, "--out", "run")
    assert not Path("run").exists()


def test_separable_rows_without_a_penalty_are_refused_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    np.savez(
        tmp_path / "far.npz", features=20.0 * np.eye(3, 6)[y] + rng.normal(size=(60, 6)), labels=y,
        clients=np.repeat(["a", "b"], 30),
    )  # fmt: skip
    words = ("--features", tmp_path / "far.npz", "--head", "logistic", "--head-options", "penalty=0,gradient_rounds=40")
    line = refused(capsys, "run", *words, "--out", tmp_path / "run")
    assert "give a penalty above 0" in line


def test_options_of_the_head_are_used_and_repeated(sites: Path) -> None:
    options = "penalty=7,temperature=2,gradient_rounds=3"
    done("run", "--features", sites, "--head", "logistic", "--head-options", options, "--out", "run")
    run = Run.open("run")
    assert {name: run.results["settings"][name] for name in ("penalty", "temperature")} == {
        "penalty": 7.0,
        "temperature": 2.0,
    }
    assert run.results["methods"]["fedhip-logistic"]["rounds"] == 1 + 3
    assert tomllib.loads(Path("run/config.toml").read_text())["head_options"] == options.split(",")
    done("run", "run/config.toml", "--out", "again")
    assert contents(Path("run"), EXACT) == contents(Path("again"), EXACT)


def test_a_ridge_that_is_asked_for_is_in_the_table(sites: Path) -> None:
    done("run", "--features", sites, "--head", "ridge", "--methods", "global", "--out", "run")
    assert list(Run.open("run").results["methods"]) == ["global", "fedhip"]
    done("run", "--features", sites, "--methods", "global", "--out", "plain")
    assert list(Run.open("plain").results["methods"]) == ["global"]
