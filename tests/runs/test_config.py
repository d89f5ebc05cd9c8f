"""config.toml: what is written is what tomllib reads; a wrong key is answered with the right one."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhip.errors import FedHiPError, InputError
from fedhip.runs.config import read_config
from fedhip.utils.toml import write_toml

KNOWN = ("alpha", "beta", "methods", "official_split", "seed", "only_local_classes")
texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.one_of(
    texts, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans(), st.lists(texts, max_size=4)
)


@given(st.dictionaries(st.sampled_from(KNOWN), values), st.text(st.characters(exclude_categories=())))
def test_round_trip_through_tomllib(options: dict[str, Any], heading: str) -> None:
    found = tomllib.loads(write_toml(options, heading))
    assert found == options
    assert [type(found[name]) for name in found] == [type(options[name]) for name in found]


@given(st.dictionaries(st.sampled_from(KNOWN), values))
def test_round_trip_through_a_file(options: dict[str, Any]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.toml")
        path.write_text(write_toml(options, "a run\nof mine"), encoding="utf-8", newline="")
        assert read_config(path, KNOWN) == options


@given(st.lists(st.floats(allow_nan=False) | st.integers(-(2**63), 2**63 - 1), max_size=3))
def test_a_list_of_numbers(numbers: list[float]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.toml")
        path.write_text(write_toml({"window": numbers}), encoding="utf-8")
        assert read_config(path, {"window"}, of_numbers={"window"}) == {"window": numbers}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alhpa = 1", "no option 'alhpa'; did you mean 'alpha'?"),
        ("only-local-clases = true", "no option 'only-local-clases'; did you mean 'only_local_classes'?"),
        ("zzz = 1", "no option 'zzz'; the keys are alpha, beta,"),
        ("[alpha]\nx = 1", "'alpha' must be a string, a number"),
        ("methods = [1]", "'methods' must be"),
        ("window = 3", "'window' must be a list of numbers"),
        ("window = ['3', '4']", "'window' must be a list of numbers"),
        ("window = [true, false]", "'window' must be a list of numbers"),
        ("seed = 2020-01-01", "'seed' must be"),
        ("official-split = true\nofficial_split = true", "there twice"),
        ("alpha = ", "is not a TOML file"),
        ("alpha = 1\nalpha = 2", "is not a TOML file"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_config(path, (*KNOWN, "window"), of_numbers={"window"})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_dashes_stand_for_underscores(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("official-split = true")
    assert read_config(tmp_path / "c.toml", KNOWN) == {"official_split": True}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no configuration file"):
        read_config(tmp_path / "none.toml", KNOWN)
    with pytest.raises(InputError, match=r"is a folder; give the file in it"):
        read_config(tmp_path, KNOWN)
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is not a TOML file"):
        read_config(tmp_path / "b.toml", KNOWN)


def test_a_path_that_is_not_utf8_is_refused_by_name() -> None:
    with pytest.raises(FedHiPError, match=r"/data/x\\xff is not UTF-8.*rename it"):
        write_toml({"data": "/data/x\udcff"})
