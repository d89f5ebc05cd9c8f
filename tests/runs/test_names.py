"""Names of clients as names of files: each its own, none outside of the folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhip.runs.names import file_name, near_names, unknown_client

AWKWARD = [
    "", ".", "..", "../..", "/", "//etc/passwd", "a/b", "a\\b", "C:\\x", ".hidden", "%2Ehidden", "%", "%25", "a b", " ",
    "\n", "\0", "\t", "ü", "u\u0308", "名前", "\udcff", "%ED%B3%BF", "x" * 300, "x" * 301, "x" * 120, "x" * 121,
    "ü" * 100, "x.safetensors", "global", "total", "-e3b0c44298fc", "a:b", "a*?", "~", "-rf", "\u202e", "A", "a",
]  # fmt: skip
names = st.one_of(st.text(st.characters(exclude_categories=()), max_size=200), st.sampled_from(AWKWARD))


def test_awkward_names_have_files_of_their_own() -> None:
    assert len({file_name(name) for name in AWKWARD}) == len(AWKWARD)


def test_a_cut_name_is_no_other_clients_whole_name() -> None:
    """Also for a client who is called like the file of another, the one without a name too."""
    for name in AWKWARD:
        stem = file_name(name).removesuffix(".safetensors")
        assert stem == name or file_name(stem) != file_name(name)


@given(names, names)
def test_distinct_clients_have_distinct_files(one: str, other: str) -> None:
    assert (file_name(one) == file_name(other)) == (one == other)
    assert file_name(one + other) != file_name(one) or not other


@given(names)
def test_a_file_lies_in_its_folder_and_can_be_written(name: str) -> None:
    found = file_name(name)
    assert Path("/run/models", found).parent == Path("/run/models")
    assert not set(found) & set('/\\\0:*?"<>|\n')
    assert found.isascii()
    assert not found.startswith(".")
    assert len(found) <= 200  # with room for a temporary file's prefix and suffix in 255
    assert found.endswith(".safetensors")


@pytest.mark.parametrize("name", AWKWARD)
def test_the_file_system_takes_it(tmp_path: Path, name: str) -> None:
    (tmp_path / file_name(name)).write_bytes(b"x")
    assert [path.name for path in tmp_path.iterdir()] == [file_name(name)]


def test_plain_names_stay_readable() -> None:
    assert file_name("site-3 (Bern)") == "site-3 (Bern).safetensors"
    assert file_name("a/b") == "a%2Fb.safetensors"


def test_an_unknown_client_is_shown_those_near_it() -> None:
    assert str(unknown_client("site-3", ["site-1", "site-2", "elsewhere"])) == (
        "the run has no client 'site-3'; near it: 'site-2', 'site-1'"
    )
    many = unknown_client("zzz", [f"site-{i}" for i in range(9)])
    assert str(many).endswith("there are 9: site-0, site-1, site-2, site-3, site-4…")
    assert near_names("x", []) == ""
