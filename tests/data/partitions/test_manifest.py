import base64
import hashlib
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedhip.data import load_partition, make_partition, save_partition, split_clients
from fedhip.data.partitions.manifest import packed, stored_split, unpacked
from fedhip.errors import DataMissingError, FileError
from tests.data.partitions.manifests import older, other_stream

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


def alter_well(path: Path, **changes: Any) -> None:
    """As somebody does who knows that there is a digest."""
    alter(path, **changes)
    content = {name: value for name, value in json.loads(path.read_text()).items() if name != "sha256"}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    alter(path, sha256=hashlib.sha256(canonical.encode()).hexdigest())


def as_it_is(path: Path) -> Path:
    return path


both = pytest.mark.parametrize("written", [as_it_is, older])


@both
@pytest.mark.parametrize("scheme", OPTIONS)
def test_manifest_gives_the_partition_back(tmp_path: Path, scheme: str, written: Callable[[Path], Path]) -> None:
    partition = make_partition(LABELS, scheme, 9, seed=5, **OPTIONS[scheme])
    save_partition(tmp_path / "p.json", partition, 0.7)
    found, split = load_partition(written(tmp_path / "p.json"), LABELS)
    assert found.clients == partition.clients
    np.testing.assert_array_equal(found.assignment, partition.assignment)
    np.testing.assert_array_equal(split, split_clients(partition, 0.7))
    assert dict(found.parameters) == dict(partition.parameters)
    assert [p.name for p in tmp_path.iterdir()] == ["p.json"]


@pytest.mark.parametrize("scheme", [*OPTIONS, "natural"])
def test_rows_stay_with_their_clients_whatever_numpy_draws(
    tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = np.array(list("abcde") * 100) if scheme == "natural" else None
    partition = make_partition(
        LABELS, scheme, None if scheme == "natural" else 9, seed=5, clients=clients, **OPTIONS.get(scheme, {})
    )
    expected = split_clients(partition, 0.7)
    save_partition(tmp_path / "p.json", partition, 0.7)
    other_stream(monkeypatch)
    assert not np.array_equal(split_clients(partition, 0.7), expected)
    found, split = load_partition(tmp_path / "p.json", LABELS, clients)
    np.testing.assert_array_equal(found.assignment, partition.assignment)
    np.testing.assert_array_equal(split, expected)
    for name, rows in zip(partition.clients, partition.rows, strict=True):
        np.testing.assert_array_equal(stored_split(tmp_path / "p.json", name), expected[rows])
    assert stored_split(tmp_path / "p.json", "nobody") is None
    with pytest.raises(FileError, match="its own scheme, parameters and seed give"):
        load_partition(older(tmp_path / "p.json"), LABELS, clients)
    assert stored_split(tmp_path / "p.json", partition.clients[0]) is None


def test_rows_can_be_read_as_the_documentation_says(path: Path) -> None:
    content = json.loads(path.read_text())
    partition, split = load_partition(path, LABELS)
    for name, expected in (("client_of_row", partition.assignment), ("split_of_row", split)):
        assert content[name]["type"] == "uint8"
        raw = zlib.decompress(base64.b64decode(content[name]["zlib"]))
        np.testing.assert_array_equal(np.frombuffer(raw, content[name]["type"]), expected)


@pytest.mark.parametrize(("largest", "kind"), [(0, "uint8"), (255, "uint8"), (256, "uint16"), (65536, "uint32")])
def test_numbers_take_the_smallest_type_that_holds_them(largest: int, kind: str) -> None:
    numbers = np.array([0, largest, 0])
    assert packed(numbers)["type"] == kind
    np.testing.assert_array_equal(unpacked(packed(numbers), 3, largest + 1), numbers)


def test_sixty_thousand_rows_are_a_small_file(tmp_path: Path) -> None:
    labels = np.random.default_rng(0).integers(0, 100, 60_000)
    save_partition(tmp_path / "p.json", make_partition(labels, "dirichlet", 50))
    assert (tmp_path / "p.json").stat().st_size < 75_000


@both
def test_natural_partition(tmp_path: Path, written: Callable[[Path], Path]) -> None:
    clients = np.array(list("abcde") * 100)
    save_partition(tmp_path / "p.json", make_partition(LABELS, "natural", clients=clients))
    written(tmp_path / "p.json")
    found, _ = load_partition(tmp_path / "p.json", LABELS, clients)
    assert found.clients == tuple("abcde")
    with pytest.raises(FileError, match="clients changed"):
        load_partition(tmp_path / "p.json", LABELS, clients[::-1])
    with pytest.raises(FileError, match="no natural clients"):
        load_partition(tmp_path / "p.json", LABELS)


def test_names_of_clients_of_any_kind(tmp_path: Path) -> None:
    """Also bytes that are not UTF-8, which Python holds as lone surrogates."""
    clients = np.array(["7", "süd", 'a"b', "caf\udce9", "x y"] * 100)
    save_partition(tmp_path / "p.json", make_partition(LABELS, "natural", clients=clients))
    found, _ = load_partition(tmp_path / "p.json", LABELS, clients)
    assert set(found.clients) == set(clients.tolist())


def test_manifest_is_small_and_complete(path: Path) -> None:
    content = json.loads(path.read_text())
    assert content["schema"] == 4
    assert content["scheme"] == "dirichlet"
    assert content["parameters"] == {"concentration": 0.1, "min_rows": 1}
    assert (content["seed"], content["num_rows"], content["num_clients"]) == (5, 500, 9)
    assert content["clients"] == [str(client) for client in range(9)]
    assert path.stat().st_size < 2000
    assert len(path.read_text().splitlines()) == len(content) + 2


@pytest.mark.parametrize("other", [LABELS[:-1], LABELS[::-1], (LABELS + 1) % 7])
def test_other_data(path: Path, other: Any) -> None:
    with pytest.raises(FileError, match=r"was made for 500 rows .* give the data it was made for"):
        load_partition(path, other)


@both
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
def test_altered_manifest(path: Path, changes: dict[str, Any], written: Callable[[Path], Path]) -> None:
    alter(written(path), **changes)
    with pytest.raises(FileError, match="it was altered"):
        load_partition(path, LABELS)


OTHERS = make_partition(LABELS, "dirichlet", 9, seed=6)


@pytest.mark.parametrize(
    "changes",
    [
        {"client_of_row": packed(OTHERS.assignment)},
        {"split_of_row": packed(split_clients(OTHERS))},
        {"clients": [*"abcdefghi"]},
        {"numpy": "1.0.0"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_altered_rows(path: Path, changes: dict[str, Any]) -> None:
    alter(path, **changes)
    with pytest.raises(FileError, match="it was altered"):
        load_partition(path, LABELS)
    with pytest.raises(FileError, match="it was altered"):
        stored_split(path, str(changes.get("clients", ["3"])[0]))
    if "numpy" not in changes:  # the hashes of rows are another guard
        alter_well(path)
        with pytest.raises(FileError, match=r"_sha256 .* its rows give .* it was altered"):
            load_partition(path, LABELS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"client_of_row": {}}, "rows are of type None"),
        ({"client_of_row": {"type": "object", "zlib": ""}}, "rows are of type 'object'; one of uint8, uint16"),
        ({"client_of_row": {"type": "uint8", "zlib": 3}}, "rows are of type"),
        ({"client_of_row": {"type": "uint8", "zlib": "?"}}, "cannot be unpacked"),
        ({"client_of_row": {"type": "uint8", "zlib": "AAAA"}}, "cannot be unpacked"),
        ({"client_of_row": packed(OTHERS.assignment[1:])}, "not the 500 rows"),
        ({"client_of_row": packed(np.zeros(10**7, np.int64))}, "not the 500 rows"),
        ({"client_of_row": packed(OTHERS.assignment + 1)}, "a row has number 9, and there are 9"),
        ({"split_of_row": packed(np.full(500, 2))}, "a row has number 2, and there are 2"),
        ({"clients": [*"abc"]}, "names 3 clients of 9"),
        ({"clients": "abc"}, "'clients' is missing or malformed"),
        ({"sha256": None}, "'sha256' is missing or malformed"),
    ],
)
def test_malformed_rows(path: Path, changes: dict[str, Any], message: str) -> None:
    alter(path, **changes) if "sha256" in changes else alter_well(path, **changes)
    with pytest.raises(FileError, match=rf"partition\.json.*{message}.*make it again"):
        load_partition(path, LABELS)


def test_mismatch_names_the_numpy_that_wrote_it(path: Path) -> None:
    alter(older(path), seed=6, numpy="1.0.0")
    with pytest.raises(FileError, match=r"with numpy 1\.0\.0"):
        load_partition(path, LABELS)


@pytest.mark.parametrize("schema", [0, 1, 2, 5, "4", 4.0, True, None, [[[]]]])
def test_other_schema(path: Path, schema: Any) -> None:
    alter(path, schema=schema)
    with pytest.raises(FileError, match="this version reads 3 and 4"):
        load_partition(path, LABELS)


@both
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
def test_malformed_manifest(path: Path, changes: dict[str, Any], written: Callable[[Path], Path]) -> None:
    alter(written(path), **changes)
    with pytest.raises(FileError, match=r"partition\.json"):
        load_partition(path, LABELS)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"seed": 1}', "\x00"])
def test_file_that_is_no_manifest(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(FileError, match="is not a partition manifest"):
        load_partition(path, LABELS)


def test_file_that_is_nested_too_deeply(path: Path) -> None:
    path.write_text("[" * 200_000)
    with pytest.raises(FileError, match="is not a partition manifest"):
        load_partition(path, LABELS)


def test_folder_instead_of_the_file(path: Path) -> None:
    with pytest.raises(FileError, match=r"is a folder; give the file in it, such as .*partition\.json"):
        load_partition(path.parent, LABELS)


@both
def test_split_that_the_data_brings_is_recorded_and_verified(path: Path, written: Callable[[Path], Path]) -> None:
    split = own_split(path)
    assert json.loads(written(path).read_text())["split"] == "given"
    _, found = load_partition(path, LABELS, data_split=split)
    np.testing.assert_array_equal(found, split)
    with pytest.raises(FileError, match="split that comes with this data"):
        load_partition(path, LABELS, data_split=split[::-1])
    with pytest.raises(FileError, match="came with the data, but this data brings no split"):
        load_partition(path, LABELS)


def test_drawn_split_is_not_mistaken_for_a_given_one(path: Path) -> None:
    assert json.loads(path.read_text())["split"] == 0.8
    with pytest.raises(FileError, match=r"made with 0\.8 of each client .* brings a split of its own"):
        load_partition(path, LABELS, data_split=np.zeros(500, np.int8))


def test_missing_field(path: Path) -> None:
    content = json.loads(path.read_text())
    del content["split_sha256"]
    path.write_text(json.dumps(content))
    with pytest.raises(FileError, match="'split_sha256' is missing"):
        load_partition(path, LABELS)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataMissingError, match="fedhip partition"):
        load_partition(tmp_path / "partition.json", LABELS)
