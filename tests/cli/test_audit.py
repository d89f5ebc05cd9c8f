"""`fedhip audit`: from a site's files to what it would give away."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedhip.cli.main import main
from fedhip.data import make_partition, split_of
from fedhip.data.tables import load_table
from tests.cli.samples import done, encoder, image_folder, refused


def feature_file(path: Path, **more: object) -> Path:
    generator = np.random.default_rng(0)
    labels = np.array(["ash"] * 6 + ["birch"] * 3 + ["cedar"])
    arrays = {"features": generator.normal(size=(10, 40)), "labels": labels, "split": np.zeros(10, int), **more}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})  # type: ignore[arg-type]
    return path


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, object]:
    capsys.readouterr()
    done("audit", *words, "--json")
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_features_of_a_small_site_come_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done("audit", "--features", feature_file(tmp_path / "site.npz"))
    shown = " ".join(capsys.readouterr().out.split())
    assert "site: 10 training rows of 40 features; 3 sites, the others with 20 rows (assumed)" in shown
    assert "10 of 10 rows recovered exactly" in shown
    assert "cedar (row 9)" in shown
    assert "1. Never send a plain upload" in shown
    found = answer(capsys, "--features", tmp_path / "site.npz", "--sites", 4, "--rows-of-others", 300)
    assert found["schema"] == 1
    assert found["worst"] == "critical"
    assert found["rows_of_others"] == {"number": 300, "assumed": False}


def test_images_are_named_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = image_folder(tmp_path / "clinic", rows=8)
    (folder / "rare").mkdir()
    (folder / "bright" / "7.png").rename(folder / "rare" / "only.png")
    options = ("--data", folder, "--weights", encoder(tmp_path), "--no-cache", tmp_path / "page.html")
    found = answer(capsys, *options)
    plain = found["plain_upload"]
    assert isinstance(plain, dict)
    assert {"rare/only.png"} <= {row["name"] for row in plain["single_rows"]}
    page = (tmp_path / "page.html").read_text()
    assert "rare/only.png" in page
    assert page.count("data:image/png;base64,") >= 1
    assert (tmp_path / "page.html").stat().st_mode & 0o777 == 0o600


def test_test_rows_are_not_in_the_upload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split = np.array([0, 1] * 5)
    found = answer(capsys, "--features", feature_file(tmp_path / "site.npz", split=split))
    assert found["rows"] == 5
    model = found["model"]
    assert isinstance(model, dict)
    assert model["held_out_rows"] == 5


def test_a_table_is_audited_as_its_training_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the table's rows become, as a feature file, gives the same findings; rows are named as in the table."""
    rng = np.random.default_rng(0)
    ages, sick, sites = rng.integers(20, 90, 14), np.arange(14) % 3 == 0, np.array(list("ab" * 7))
    lines = [f"{age},{site},{ill},{age * 0.5}" for age, site, ill in zip(ages, sites, sick, strict=True)]
    lines[2] = f"{ages[2]},a,{sick[2]},"  # to be filled with the mean of the site's own training rows
    (tmp_path / "t.csv").write_text("\n".join(("age,site,sick,half", *lines)))
    own = ("--data", tmp_path / "t.csv", "--label", "sick", "--client-column", "site", "--client", "a")
    found = answer(capsys, *own)
    assert (found["site"], found["rows"]) == ("a", 6)
    with np.load(feature_file(tmp_path / "f.npz", **features_of(tmp_path / "t.csv"))) as file:
        assert file["features"].shape == (14, 3)  # age, half, and whether half is missing
    as_features = answer(capsys, "--features", tmp_path / "f.npz", "--client", "a")
    plain, expected = found["plain_upload"], as_features["plain_upload"]
    assert isinstance(plain, dict)
    assert isinstance(expected, dict)
    assert [row["name"] for row in plain["single_rows"]] == [
        f"row {int(row['name'].removeprefix('row ')) + 1}" for row in expected["single_rows"]
    ]
    for key in ("model", "worst", "rows_of_others"):
        assert found[key] == as_features[key], key


def test_with_noise_a_table_needs_ranges_that_were_agreed_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    lines = (f"{rng.integers(20, 90)},{row % 3 == 0}" for row in range(14))
    (tmp_path / "t.csv").write_text("\n".join(("age,sick", *lines)))
    asked = ("--data", tmp_path / "t.csv", "--label", "sick", "--epsilon", 1)
    assert "agree on a description with 'low' and 'high'" in refused(capsys, "audit", *asked)
    agreed = 'schema = 1\n[columns.age]\nkind = "number"\nlow = 0.0\nhigh = 120.0\n'
    (tmp_path / "columns.toml").write_text(agreed)
    found = answer(capsys, *asked, "--columns", tmp_path / "columns.toml")
    assert found["rows"] == 11


def features_of(table: Path) -> dict[str, np.ndarray]:
    """The table's rows, filled and divided as a site divides its own."""
    rows = load_table(table, label="sick", client="site")
    partition = make_partition(rows.labels, "natural", clients=rows.clients)
    own = (split_of(None, partition) == 0) & (rows.clients == "a")
    features = rows.features(own)[0]
    names = np.array(features.class_names)[features.labels]
    assert features.clients is not None
    return {"features": features.features, "labels": names, "clients": features.clients, "split": None}


def test_one_client_of_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = feature_file(tmp_path / "sites.npz", clients=np.array(["a"] * 4 + ["b"] * 6))
    assert answer(capsys, "--features", path, "--client", "b")["rows"] == 6
    assert "choose one with --client" in refused(capsys, "audit", "--features", path)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--sites", 1), "--sites 2 or more"),
        (("--rows-of-others", 1), "too few"),
        (("--seconds", 0), "--seconds 0"),
        (("page.txt",), "ends in .html"),
        (("--fraction-bits", 99), "0 to 62"),
        (("--backbone", "vit-mae-base"), "no effect on --features"),
    ],
)
def test_refusals_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[object, ...], reason: str
) -> None:
    assert reason in refused(capsys, "audit", "--features", feature_file(tmp_path / "site.npz"), *words)


def test_an_interrupted_audit_leaves_no_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedhip.privacy.audit.recover_rows", interrupt)
    words = ["audit", "--features", str(feature_file(tmp_path / "site.npz")), str(tmp_path / "page.html")]
    assert main(words) == 130
    assert not (tmp_path / "page.html").exists()
    assert "Traceback" not in capsys.readouterr().err


def test_with_epsilon_the_attacks_are_on_sums_with_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = feature_file(tmp_path / "site.npz")
    found = answer(capsys, "--features", file, "--epsilon", 8, "--clip", 6)
    rows = [found[part]["lattice"]["recovered"] for part in ("plain_upload", "sum")]  # type: ignore[index]
    assert rows == [[], []]
    done("audit", "--features", file, "--epsilon", 8, "--clip", 6)
    shown = " ".join(capsys.readouterr().out.split())
    assert "0 of 10 rows recovered from the sum" in shown
    assert "(8, 1e-05)-differential privacy protects every training row" in shown
    assert "nothing public is known" in refused(capsys, "audit", "--features", file, "--epsilon", 8)
    assert "--clip is of differential privacy" in refused(capsys, "audit", "--features", file, "--clip", 6)
    bits = ("--epsilon", 8, "--clip", 6, "--fraction-bits", 30)
    assert "--fraction-bits is given" in refused(capsys, "audit", "--features", file, *bits)
