import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedhip.data import load_partition, make_partition, save_partition, split_clients
from fedhip.data.errors import DataMissingError, ManifestError, ManifestMismatchError, ManifestVersionError

LABELS = np.arange(500) % 7
OPTIONS: dict[str, dict[str, Any]] = {
    "dirichlet": {"concentration": 0.3, "min_rows": 5},
    "dirichlet-unbalanced": {"concentration": 0.3},
    "shards": {"shards_per_client": 3},
    "iid": {},
    "quantity": {"concentration": 2},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "partition.json"
    save_partition(path, make_partition(LABELS, "dirichlet", 9, seed=5))
    return path


def own_split(path: Path) -> NDArray[np.int8]:
    split = (np.arange(500) % 2).astype(np.int8)
    save_partition(path, make_partition(LABELS, "dirichlet", 9, seed=5), data_split=split)
    return split


def alter(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("scheme", OPTIONS)
def test_manifest_makes_the_partition_again(tmp_path: Path, scheme: str) -> None:
    partition = make_partition(LABELS, scheme, 9, seed=5, **OPTIONS[scheme])
    save_partition(tmp_path / "p.json", partition, 0.7)
    found, split = load_partition(tmp_path / "p.json", LABELS)
    np.testing.assert_array_equal(found.assignment, partition.assignment)
    np.testing.assert_array_equal(split, split_clients(partition, 0.7))
    assert dict(found.parameters) == dict(partition.parameters)
    assert [p.name for p in tmp_path.iterdir()] == ["p.json"]


def test_natural_partition(tmp_path: Path) -> None:
    clients = np.array(list("abcde") * 100)
    save_partition(tmp_path / "p.json", make_partition(LABELS, "natural", clients=clients))
    found, _ = load_partition(tmp_path / "p.json", LABELS, clients)
    assert found.clients == tuple("abcde")
    with pytest.raises(ManifestMismatchError, match="clients changed"):
        load_partition(tmp_path / "p.json", LABELS, clients[::-1])
    with pytest.raises(ManifestError, match="no natural clients"):
        load_partition(tmp_path / "p.json", LABELS)


def test_manifest_is_small_and_complete(path: Path) -> None:
    content = json.loads(path.read_text())
    assert content["schema"] == 3
    assert content["scheme"] == "dirichlet"
    assert content["parameters"] == {"concentration": 0.1, "min_rows": 1}
    assert (content["seed"], content["num_rows"], content["num_clients"]) == (5, 500, 9)
    assert path.stat().st_size < 1000


@pytest.mark.parametrize("other", [LABELS[:-1], LABELS[::-1], (LABELS + 1) % 7])
def test_other_data(path: Path, other: Any) -> None:
    with pytest.raises(ManifestMismatchError, match=r"was made for 500 rows .* give the data it was made for"):
        load_partition(path, other)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 6},
        {"scheme": "dirichlet-unbalanced"},
        {"parameters": {"concentration": 0.2, "min_rows": 1}},
        {"num_clients": 10},
        {"split": 0.5},
        {"assignment_sha256": "0" * 64},
        {"split_sha256": "0" * 64},
    ],
    ids=str,
)
def test_altered_manifest(path: Path, changes: dict[str, Any]) -> None:
    alter(path, **changes)
    with pytest.raises(ManifestMismatchError, match="it was altered"):
        load_partition(path, LABELS)


def test_mismatch_names_the_numpy_that_wrote_it(path: Path) -> None:
    alter(path, seed=6, numpy="1.0.0")
    with pytest.raises(ManifestMismatchError, match=r"with numpy 1\.0\.0"):
        load_partition(path, LABELS)


@pytest.mark.parametrize("schema", [0, 1, 2, 4, "3", 3.0, True, None, [[[]]]])
def test_other_schema(path: Path, schema: Any) -> None:
    alter(path, schema=schema)
    with pytest.raises(ManifestVersionError, match="this version reads 3"):
        load_partition(path, LABELS)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": "5"},
        {"seed": True},
        {"seed": -1},
        {"scheme": "other"},
        {"parameters": []},
        {"parameters": {"concentration": 0}},
        {"parameters": {"concentration": "0.1"}},
        {"parameters": {"unknown": 1}},
        {"parameters": {"seed": 1}},
        {"num_clients": 10**6},
        {"split": 2.0},
        {"split": 1},
        {"split": "other"},
        {"split": None},
        {"seed": 5.0},
        {"num_clients": 9.0},
        {"parameters": {}},
        {"parameters": {"min_rows": 1}},
        {"parameters": {"concentration": 0.1}},
        {"parameters": {"concentration": 0.1, "min_rows": None}},
        {"parameters": {"concentration": 0.1, "min_rows": True}},
        {"parameters": {"concentration": 0.1, "min_rows": 1.0}},
        {"parameters": {"concentration": 1, "min_rows": 1}},
        {"parameters": {"concentration": None, "min_rows": 1}},
        {"parameters": {"concentration": 0.1, "min_rows": 1, "shards_per_client": None}},
        {"labels_sha256": None},
    ],
    ids=str,
)
def test_malformed_manifest(path: Path, changes: dict[str, Any]) -> None:
    alter(path, **changes)
    with pytest.raises(ManifestError, match=r"partition\.json"):
        load_partition(path, LABELS)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"seed": 1}', "\x00"])
def test_file_that_is_no_manifest(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(ManifestError, match="is not a partition manifest"):
        load_partition(path, LABELS)


def test_file_that_is_nested_too_deeply(path: Path) -> None:
    path.write_text("[" * 200_000)
    with pytest.raises(ManifestError, match="is not a partition manifest"):
        load_partition(path, LABELS)


def test_folder_instead_of_the_file(path: Path) -> None:
    with pytest.raises(ManifestError, match=r"is a folder; give the file in it, such as .*partition\.json"):
        load_partition(path.parent, LABELS)


def test_split_that_the_data_brings_is_recorded_and_verified(path: Path) -> None:
    split = own_split(path)
    assert json.loads(path.read_text())["split"] == "given"
    _, found = load_partition(path, LABELS, data_split=split)
    np.testing.assert_array_equal(found, split)
    with pytest.raises(ManifestMismatchError, match="split that comes with this data"):
        load_partition(path, LABELS, data_split=split[::-1])
    with pytest.raises(ManifestMismatchError, match="came with the data, but this data brings no split"):
        load_partition(path, LABELS)


def test_drawn_split_is_not_mistaken_for_a_given_one(path: Path) -> None:
    assert json.loads(path.read_text())["split"] == 0.8
    with pytest.raises(ManifestMismatchError, match=r"made with 0\.8 of each client .* brings a split of its own"):
        load_partition(path, LABELS, data_split=np.zeros(500, np.int8))


def test_missing_field(path: Path) -> None:
    content = json.loads(path.read_text())
    del content["split_sha256"]
    path.write_text(json.dumps(content))
    with pytest.raises(ManifestError, match="'split_sha256' is missing"):
        load_partition(path, LABELS)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataMissingError, match="fedhip partition"):
        load_partition(tmp_path / "partition.json", LABELS)
