"""`fedhip federation`: what is made, what is refused, and that nothing heavy is imported before it is needed."""

from __future__ import annotations

import argparse
import json
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhip.cli.federation.init import with_engine
from fedhip.cli.main import main
from fedhip.errors import MissingExtraError
from tests.cli.samples import deepen, done, encoder, image_folder, refused, said
from tests.runs.samples import feature_file

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the engine's libraries warn one another
    import flwr.clientapp
    import flwr.serverapp  # noqa: F401

SITES = ("--site", "a", "--site", "b", "--site", "c")
ROWS = ("--classes", "x,y", "--width", "4")


@pytest.fixture
def fed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    done("federation", "init", tmp_path / "fed", "--name", "demo", *SITES, *ROWS)
    capsys.readouterr()
    return tmp_path / "fed"


def test_init_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done("federation", "init", tmp_path / "fed", "--name", "demo", *SITES, *ROWS, "--host", "localhost")
    shown = capsys.readouterr().out
    assert "localhost:8443" in shown
    assert f"fedhip federation serve {tmp_path / 'fed'}" in shown
    for name in "abc":
        assert f"site-{name}" in shown
    assert stat.S_IMODE((tmp_path / "fed" / "site-a" / "key").stat().st_mode) == 0o600


def test_init_in_json_with_all_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fedhip.federation.agreement.agreement import Agreement

    words = "--alpha 2 --beta 0.5 --seed 3 --quorum 3 --threshold 2 --deadline 60 --max-rows 500 --only-local-classes"
    more = ("--dishonest-sites", 0, "--largest-feature", 8, "--port", 9000, "--days", 30, "--json")
    done("federation", "init", tmp_path / "fed", "--name", "demo", *SITES, *ROWS, *words.split(), *more)
    made = json.loads(capsys.readouterr().out)
    assert made["address"] == "127.0.0.1:9000"
    assert set(made["sites"]) == {"a", "b", "c"}
    agreement = Agreement.read(tmp_path / "fed" / "federation.toml")
    assert made["agreement"] == agreement.digest()
    assert (agreement.alpha, agreement.beta, agreement.seed, agreement.quorum) == (2.0, 0.5, 3, 3)
    assert (agreement.threshold, agreement.deadline, agreement.max_rows) == (2, 60.0, 500)
    assert agreement.only_local_classes
    assert agreement.secure_sum


def test_init_with_a_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fedhip.federation.agreement.agreement import Agreement

    usual = ("federation", "init", tmp_path / "fed", "--name", "demo", *SITES, *ROWS)
    assert "the head is 'auto', which has no gradients" in refused(capsys, *usual, "--gradient-rounds", 3)
    done(*usual, "--head", "logistic", "--gradient-rounds", 3)
    agreement = Agreement.read(tmp_path / "fed" / "federation.toml")
    assert (agreement.head, agreement.gradient_rounds) == ("logistic", 3)


def test_init_with_a_lift(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fedhip.federation.agreement.agreement import Agreement

    usual = ("federation", "init", tmp_path / "fed", "--name", "demo", *SITES, *ROWS)
    assert "--lift-width needs a lift" in refused(capsys, *usual, "--lift-width", 20)
    assert "has no kernel" in refused(capsys, *usual, "--lift", "relu", "--lift-bandwidth", 2.0)
    done(*usual, "--lift", "relu", "--lift-width", 20, "--lift-seed", 7)
    assert "one exchange more, in which each client sends" in capsys.readouterr().err
    agreement = Agreement.read(tmp_path / "fed" / "federation.toml")
    assert (agreement.lift, agreement.lift_width, agreement.lift_seed) == ("relu", 20, 7)
    done("federation", "init", tmp_path / "two", *usual[3:], "--lift", "fourier", "--lift-budget", 0.01)
    agreement = Agreement.read(tmp_path / "two" / "federation.toml")
    assert agreement.lift_bandwidth == 1.0
    assert 8 * agreement.layout.size < 10_000


def test_init_with_priors(tmp_path: Path) -> None:
    from fedhip.federation.agreement.agreement import Agreement

    usual = ("federation", "init", tmp_path / "fed", "--name", "demo", *SITES, *ROWS)
    done(*usual, "--head", "ridge", "--prior", "client")
    agreement = Agreement.read(tmp_path / "fed" / "federation.toml")
    assert (agreement.head, agreement.prior) == ("ridge", "client")


def columns_file(path: Path, **changes: Any) -> Path:
    content = {"offset": [0.5, -3, 50_000.0, 0], "exponent": [-3, 0, 14, 1], **changes}
    path.write_text(json.dumps(content))
    return path


def test_init_with_units_of_columns_in_a_file(tmp_path: Path) -> None:
    from fedhip.federation.agreement.agreement import Agreement
    from fedhip.federation.sums.table import sums_follow

    usual = ("--name", "demo", *SITES, *ROWS)
    done("federation", "init", tmp_path / "one", *usual, "--columns", columns_file(tmp_path / "units.json"))
    one = Agreement.read(tmp_path / "one" / "federation.toml")
    assert (one.columns, one.surveys_columns) == ("given", False)
    assert one.column_offsets == (0.5, -3.0, 50_000.0, 0.0)
    assert one.column_exponents == (-3, 0, 14, 1)
    # A run's details.json says them too.
    nested = tmp_path / "details.json"
    nested.write_text(json.dumps({"columns": json.loads((tmp_path / "units.json").read_text()), "schema": 1}))
    done("federation", "init", tmp_path / "two", *usual, "--columns", nested)
    assert Agreement.read(tmp_path / "two" / "federation.toml").digest() == one.digest()
    for word, first in (("sum", True), ("plain", False)):
        done("federation", "init", tmp_path / word, *usual, "--columns", word, "--beta", "gcv")
        found = Agreement.read(tmp_path / word / "federation.toml")
        assert (found.columns, found.surveys_columns, sums_follow(found)) == (word, first, False)


def test_init_with_units_of_columns_as_a_feature_file_asks_for(tmp_path: Path) -> None:
    from fedhip.federation.agreement.agreement import Agreement

    rng = np.random.default_rng(0)
    rows = rng.normal([0.5, 3.0, 50_000.0, 1e-3], [0.1, 1.0, 20_000.0, 1e-4], size=(200, 4))
    np.savez(tmp_path / "rows.npz", features=rows, labels=rng.integers(0, 2, 200))
    words = ("--name", "demo", *SITES, *ROWS, "--columns", tmp_path / "rows.npz")
    done("federation", "init", tmp_path / "one", *words)
    found = Agreement.read(tmp_path / "one" / "federation.toml")
    assert found.columns == "given"
    assert found.column_offsets is not None
    assert found.column_exponents is not None
    units = (rows - np.array(found.column_offsets)) * 2.0 ** -np.array(found.column_exponents, dtype=float)
    assert ((units.std(axis=0) >= 1.0) & (units.std(axis=0) < 2.0)).all()
    assert (np.abs(units.mean(axis=0)) <= 0.5 + 1e-6).all()
    # A ridge without an intercept on features as they came cannot move a column.
    done("federation", "init", tmp_path / "two", *words, "--no-intercept", "--no-standardize")
    paper = Agreement.read(tmp_path / "two" / "federation.toml")
    assert paper.column_offsets == (0.0,) * 4
    assert (paper.standardize, paper.intercept) == (False, False)


@pytest.mark.parametrize(
    ("changes", "more", "message"),
    [
        ({"offset": [0.0] * 3, "exponent": [0] * 3}, (), "column_offsets has 3 numbers, and features are 4 wide"),
        ({"offset": [0.0] * 5}, (), "'offset' and 'exponent' must be lists of as many finite numbers"),
        ({"offset": [0.0, float("nan"), 0.0, 0.0]}, (), "must be lists of as many finite numbers"),
        ({"offset": [0.0, float("inf"), 0.0, 0.0]}, (), "must be lists of as many finite numbers"),
        ({"offset": [0.0, 1e30, 0.0, 0.0]}, (), "a number of column_offsets is 1e+30; give a finite number below"),
        ({"offset": [0.0, "1", 0.0, 0.0]}, (), "does not say the units of columns"),
        ({"offset": 7}, (), "must be lists of as many finite numbers"),
        ({"exponent": [0, 1.5, 0, 0]}, (), "an exponent is not a whole number"),
        ({"exponent": [0, True, 0, 0]}, (), "an exponent is not a whole number"),
        ({"exponent": [0, 999, 0, 0]}, (), "a number of column_exponents is 999; give a whole number from -200 to 200"),
        ({"exponent": "abcd"}, (), "does not say the units of columns"),
        ({"exponent": None}, (), "does not say the units of columns"),
        ({}, ("--no-intercept", "--no-standardize"), "column_offsets are not all 0, and the ridge has no intercept"),
    ],
)
def test_units_of_columns_that_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], more: tuple[str, ...], message: str
) -> None:
    path = columns_file(tmp_path / "units.json", **changes)
    words = ("--name", "demo", *SITES, *ROWS, "--columns", path, *more)
    assert message in refused(capsys, "federation", "init", tmp_path / "fed", *words)
    assert not (tmp_path / "fed").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("units.json", None, "does not say the units of columns"),
        ("units.json", b"[1, 2", "does not say the units of columns"),
        ("units.json", b"[]", "does not say the units of columns"),
        ("rows.npz", None, "rows.npz"),
        ("rows.npz", b"not a zip file", "rows.npz"),
        ("sums", None, "sums"),
    ],
)
def test_files_that_say_no_units(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    words = ("--name", "demo", *SITES, *ROWS, "--columns", tmp_path / name)
    assert message in refused(capsys, "federation", "init", tmp_path / "fed", *words)
    assert not (tmp_path / "fed").exists()


def test_units_of_a_feature_file_that_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usual = ("federation", "init", tmp_path / "fed", "--name", "demo", *SITES, *ROWS, "--columns")
    rows = np.random.default_rng(0).uniform(size=(20, 4))
    np.savez(tmp_path / "narrow.npz", features=rows[:, :3], labels=[0, 1] * 10)
    line = refused(capsys, *usual, tmp_path / "narrow.npz")
    assert "column_offsets has 3 numbers, and features are 4 wide" in line
    rows[7, 2] = 1e12
    np.savez(tmp_path / "wild.npz", features=rows, labels=[0, 1] * 10)
    assert "column 2 holds a value of about 1e+12" in refused(capsys, *usual, tmp_path / "wild.npz")
    rows[7, 2] = np.nan
    np.savez(tmp_path / "nan.npz", features=rows, labels=[0, 1] * 10)
    assert "NaN" in refused(capsys, *usual, tmp_path / "nan.npz")


def test_classes_and_width_of_a_feature_file_or_a_list(tmp_path: Path) -> None:
    from fedhip.federation.agreement.agreement import Agreement

    np.savez(tmp_path / "rows.npz", features=np.ones((4, 6)), labels=["cat", "dog", "cat", "dog"])
    done("federation", "init", tmp_path / "one", "--name", "demo", *SITES, "--features", tmp_path / "rows.npz")
    one = Agreement.read(tmp_path / "one" / "federation.toml")
    assert (one.classes, one.width) == (("cat", "dog"), 6)
    (tmp_path / "classes.txt").write_text("cat\n\ndog \n")
    words = ("--classes", tmp_path / "classes.txt", "--width", 6)
    done("federation", "init", tmp_path / "two", "--name", "demo", *SITES, *words)
    assert Agreement.read(tmp_path / "two" / "federation.toml").classes == one.classes


def test_a_backbone_comes_with_its_encoder(tmp_path: Path) -> None:
    from fedhip.federation.agreement.agreement import Agreement
    from fedhip.federation.site.encoder import EncoderFile

    words = ("--classes", "x,y", "--backbone", "fedhip-vit", "--weights", encoder(tmp_path))
    done("federation", "init", tmp_path / "fed", "--name", "demo", *SITES, *words)
    agreement = Agreement.read(tmp_path / "fed" / "federation.toml")
    assert agreement.backbone is not None
    assert agreement.backbone.name == "fedhip-vit"
    assert agreement.width == 48  # its usual pooling joins three layers of 16
    EncoderFile.of(tmp_path / "fed" / "encoder.safetensors", agreement)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["init", "DIR/x", "--name", "d", *SITES, "--width", "4"], "give one of --classes, --features and --dataset"),
        (
            ["init", "DIR/x", "--name", "d", *SITES, "--classes", "x,y"],
            "give --features, --width, --backbone or --columns columns.toml",
        ),
        (["init", "DIR/x", "--name", "d", "--site", "a", "--classes", "x,y", "--width", "4"], "at least two"),
        (["init", "DIR/x", "--name", "d", *SITES, *ROWS, "--pooling", "cls"], "name it with --backbone"),
        (["init", "DIR/x", "--name", "d", *SITES, *ROWS, "--window", "0", "9"], "name it with --backbone"),
        (["serve", "DIR"], "is no folder of a federation; make one: fedhip federation init"),
        (["run", "DIR"], "is no folder of a federation"),
        (["status", "DIR"], "is no folder of a federation"),
        (["stop", "DIR/none"], "there is no folder"),
        (["site", "DIR/none", "--data", "x"], "there is no folder"),
    ],
)
def test_each_refusal_is_one_line(
    words: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reason in refused(capsys, "federation", *(word.replace("DIR", str(tmp_path)) for word in words))


def test_a_site_is_refused_before_anything_starts(fed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no /nowhere" in refused(capsys, "federation", "site", fed / "site-a", "--data", "/nowhere")
    line = refused(capsys, "federation", "site", fed / "site-a", "--data", fed, "--name", "b")
    assert "is the folder of site 'a', not of 'b'" in line
    (fed / "site-a" / "key").write_bytes((fed / "site-b" / "key").read_bytes())
    assert "that of the site 'b'" in refused(capsys, "federation", "site", fed / "site-a", "--data", fed)


def test_run_and_status_and_stop_without_a_server(fed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"start it: fedhip federation serve {fed}" in refused(capsys, "federation", "run", fed)
    done("federation", "status", fed)
    assert "demo is not served" in capsys.readouterr().out
    done("federation", "status", fed, "--json")
    assert json.loads(capsys.readouterr().out)["serving"] is False
    done("federation", "status", fed / "site-a")
    assert "site 'a' is not connected" in capsys.readouterr().out
    done("federation", "stop", fed)
    assert "nothing ran" in capsys.readouterr().out


@pytest.mark.parametrize("waiting", [[], ["b", "c"]])
def test_a_round_says_who_has_no_model_yet(
    fed: Path, waiting: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedhip.federation.operations import round_control

    done("run", "--features", feature_file(fed / "rows.npz"), "--out", fed / "result", "--methods", "fedhip")
    results = fed / "result" / "results.json"
    results.write_text(json.dumps({**json.loads(results.read_text()), "without_model": waiting}))
    monkeypatch.setattr(round_control, "run", lambda place, say: fed / "result")
    capsys.readouterr()
    assert main(["federation", "run", str(fed)]) == (1 if waiting else 0)
    last = capsys.readouterr().out.splitlines()[-1]
    expected = "without a model yet: b, c; start the round again when they are back, and they get the same sum"
    assert last == (expected if waiting else f"the round is finished; the result is in {fed / 'result'}")
    assert main(["federation", "run", str(fed), "--json"]) == (1 if waiting else 0)
    assert json.loads(capsys.readouterr().out)["without_model"] == waiting


def test_nginx_is_printed(fed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done("federation", "serve", fed, "--print-nginx")
    printed = capsys.readouterr().out
    assert "listen 8443 ssl;" in printed
    assert str(fed / "server" / "server.pem") in printed


def test_a_mistyped_option_is_answered_with_the_right_one(fed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["federation", "serve", str(fed), "--bakground"])
    assert "did you mean '--background'?" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_line_imports_no_engine() -> None:
    code = "import sys, fedhip.cli.main as m; m.build_parser(); print({'flwr', 'httpx', 'h11'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    assert shown.stdout.strip() == "set()"


def test_without_the_extra_it_is_named() -> None:
    def needs(name: str) -> Callable[[argparse.Namespace], int]:
        def handler(_: argparse.Namespace) -> int:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        return handler

    with pytest.raises(MissingExtraError, match=r'pip install "fedhip\[federation\]"'):
        with_engine(needs("flwr"))(argparse.Namespace())
    with pytest.raises(ModuleNotFoundError):  # a mistake of ours is no missing extra
        with_engine(needs("fedhip.nowhere"))(argparse.Namespace())


def test_a_width_that_is_not_the_backbone_s_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--backbone", "fedhip-vit", "--weights", encoder(tmp_path))
    line = refused(capsys, "federation", "init", tmp_path / "fed", "--name", "demo", *SITES, *ROWS, *words)
    assert "makes features 48 wide, not 4" in line
    np.savez(tmp_path / "rows.npz", features=np.ones((4, 6)), labels=["cat", "dog", "cat", "dog"])
    other = ("--features", tmp_path / "rows.npz", "--width", 4)
    assert "are 6 wide" in refused(capsys, "federation", "init", tmp_path / "fed", "--name", "demo", *SITES, *other)
    assert not (tmp_path / "fed").exists()


@pytest.mark.parametrize("trouble", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_init_leaves_all_or_nothing(trouble: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise trouble

    monkeypatch.setattr("fedhip.federation.operations.serving.write_endpoint", broken)
    code = main(["federation", "init", str(tmp_path / "fed"), "--name", "demo", *SITES, *ROWS])
    assert code == (130 if isinstance(trouble, KeyboardInterrupt) else 3)
    assert list(tmp_path.iterdir()) == []


def test_commands_to_copy_are_quoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done("federation", "init", tmp_path / "my fed", "--name", "demo", *SITES, *ROWS)
    assert f"fedhip federation serve '{tmp_path / 'my fed'}'" in capsys.readouterr().out
    line = refused(capsys, "federation", "run", tmp_path / "my fed")
    assert f"fedhip federation serve '{tmp_path / 'my fed'}'" in line


def test_the_folder_of_the_other_side_is_known_as_such(fed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "federation", "site", fed, "--features", fed)
    assert "is the coordinator's folder; give a site's, such as site-a, site-b, site-c in it" in line
    for command in ("serve", "run"):
        assert "is the folder of a site; give the coordinator's" in refused(
            capsys, "federation", command, fed / "site-a"
        )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"features": np.ones((4, 5))}, "are 5 wide, and the agreement says 4"),
        ({"features": np.full((4, 4), 1e20)}, "a feature of column 0 is as large as 1e+20 here"),
        ({"features": np.full((4, 4), np.nan)}, "hold NaN or infinity"),
        ({"features": np.ones((0, 4)), "labels": np.array([], dtype=str)}, "give real numbers of shape (N, m)"),
        ({"labels": ["x", "yy"] * 2}, "'yy'"),
        ({"clients": ["b", "b", "c", "c"]}, "none of 'a'"),
        ({"split": [1, 1, 1, 1]}, "has no row to train on"),
    ],
)
def test_rows_that_the_round_would_refuse_are_refused_before_it(
    change: dict[str, object], reason: str, fed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(fed / "rows.npz", **{"features": np.ones((4, 4)), "labels": ["x", "y"] * 2, **change})  # type: ignore[arg-type]
    assert reason in refused(capsys, "federation", "site", fed / "site-a", "--features", fed / "rows.npz")
    assert not (fed / "site-a" / "state").exists()


def test_a_feature_larger_than_agreed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fed = tmp_path / "fed"
    done("federation", "init", fed, "--name", "demo", *SITES, *ROWS, "--columns", "plain")
    np.savez(fed / "rows.npz", features=np.full((4, 4), 99.0), labels=["x", "y"] * 2)
    line = refused(capsys, "federation", "site", fed / "site-a", "--features", fed / "rows.npz")
    assert "a feature of column 0 is as large as 99 here, and the agreement allows 16; agree on units" in line
    assert not (fed / "site-a" / "state").exists()


def test_images_where_feature_files_were_agreed_on(fed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = image_folder(fed / "images")
    for name, agreed in (("dark", "x"), ("bright", "y")):
        (images / name).rename(images / agreed)
    assert "names no backbone" in refused(capsys, "federation", "site", fed / "site-a", "--data", images)


def test_a_window_is_agreed_on_for_images_of_more_than_8_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedhip.data import Window
    from fedhip.federation.agreement.agreement import Agreement
    from fedhip.federation.operations import background

    deep = deepen(image_folder(tmp_path / "images"), tmp_path / "deep")
    words = ("--classes", "dark,bright", "--backbone", "fedhip-vit", "--weights", encoder(tmp_path))
    done("federation", "init", tmp_path / "none", "--name", "demo", *SITES, *words)
    line = refused(capsys, "federation", "site", tmp_path / "none" / "site-a", "--data", deep)
    assert "has images of more than 8 bits, and the agreement has no window: each site would find another" in line
    done("federation", "init", tmp_path / "fed", "--name", "demo", *SITES, *words, "--window", "0", "4000")
    agreement = Agreement.read(tmp_path / "fed" / "federation.toml")
    assert agreement.backbone is not None
    assert agreement.backbone.window == Window(0, 4000)
    monkeypatch.setattr(background, "apart", lambda *_: "connected")
    capsys.readouterr()
    done("federation", "site", tmp_path / "fed" / "site-a", "--data", deep, "--background")
    (line,) = [line for line in said(capsys) if "8 bits" in line]
    assert "0 to 4000 is black to white (their values: " in line
    assert line.endswith("as the agreement says")
    for more, reason in ((("5", "5"), "is empty"), (("nan", "1"), "two finite numbers")):
        bad = ("federation", "init", tmp_path / "x", "--name", "d", *SITES, *words, "--window", *more)
        assert reason in refused(capsys, *bad)
    assert not (tmp_path / "x").exists()


def test_places_and_devices_of_a_site_are_looked_at_first(fed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(fed / "rows.npz", features=np.ones((4, 4)), labels=["x", "y"] * 2)
    words = ("federation", "site", fed / "site-a", "--features", fed / "rows.npz")
    assert "is not a run folder" in refused(capsys, *words, "--out", fed)
    assert "is a file, not a folder" in refused(capsys, *words, "--out", fed / "rows.npz" / "out")
    assert "there is no nowhere" in refused(capsys, *words, "--weights", "nowhere")
    assert "use cpu, cuda" in refused(capsys, *words, "--device", "tpu")
    done("run", "--features", feature_file(fed / "sites.npz"), "--head", "ridge", "--out", fed / "run")
    assert "holds another run" in refused(capsys, *words, "--out", fed / "run")
    assert not (fed / "site-a" / "state").exists()
