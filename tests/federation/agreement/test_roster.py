"""The roster: read strictly, one digest for one content, and no key for two sites."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedhip.federation.agreement.credentials import make_site_key
from fedhip.federation.agreement.roster import Roster
from fedhip.federation.errors import SetupError


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("keys")
    return {name: make_site_key(folder / name) for name in ("a", "b", "c")}


def test_what_is_written_is_read(keys: dict[str, bytes], tmp_path: Path) -> None:
    roster = Roster("study", keys)
    (tmp_path / "roster.json").write_text(roster.to_text())
    again = Roster.read(tmp_path / "roster.json")
    assert again == roster
    assert again.names == ("a", "b", "c")
    assert again.digest() == roster.digest()
    assert again.owner(keys["b"]) == "b"
    assert again.owner(b"x") is None


def test_the_digest_is_of_the_content_and_not_of_the_file(keys: dict[str, bytes], tmp_path: Path) -> None:
    roster = Roster("study", keys)
    content = json.loads(roster.to_text())
    content["sites"] = dict(reversed(content["sites"].items()))
    for entry in content["sites"].values():
        entry["key"] += "  a comment"
    (tmp_path / "r.json").write_text(json.dumps(dict(reversed(content.items()))))
    assert Roster.read(tmp_path / "r.json").digest() == roster.digest()
    digests = {
        roster.digest(),
        Roster("study2", keys).digest(),
        Roster("study", {**keys, "a": keys["b"], "b": keys["a"]}).digest(),
        Roster("study", {"a": keys["a"], "b": keys["b"]}).digest(),
        Roster("study", {"a": keys["a"], "b": keys["b"], "d": keys["c"]}).digest(),
    }
    assert len(digests) == 5


def test_two_sites_with_one_key_are_refused(keys: dict[str, bytes]) -> None:
    with pytest.raises(SetupError, match="sites 'a' and 'b' have the same key"):
        Roster("study", {"a": keys["a"], "b": keys["a"] + b" comment"})


def test_malformed_rosters_are_refused_by_name(keys: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "roster.json"
    good = json.loads(Roster("study", keys).to_text())
    a = good["sites"]["a"]
    for content, message in (
        ([], "has not the keys"),
        ({**good, "more": 1}, "has not the keys"),
        ({**good, "schema": 2}, "schema 2, and this fedhip reads 1"),
        ({**good, "schema": True}, "schema True"),
        ({**good, "federation": "x/y"}, "name is 'x/y'"),
        ({**good, "sites": [a]}, "'sites' is"),
        ({**good, "sites": {"a": a}}, "at least two"),
        ({**good, "sites": {"a": a, "A": good["sites"]["b"]}}, "differ only in case"),
        ({**good, "sites": {"a": a, "../b": good["sites"]["b"]}}, "cannot be called '../b'"),
        ({**good, "sites": {"a": a, "b": "key"}}, "site 'b' has not just one text 'key'"),
        ({**good, "sites": {"a": a, "b": {"key": "ssh-ed25519 AAAA"}}}, "site 'b': the public key is not of the kind"),
        ({**good, "sites": {"a": a, "b": {"key": "\ud800 x"}}}, "site 'b': the public key"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(SetupError) as error:
            Roster.read(path)
        assert message in str(error.value)
        assert str(path) in str(error.value)
    text = Roster("study", keys).to_text()
    for raw in (b"\xff", b"{", text.replace('"b"', '"a"').encode(), b"[" * 100_000, b" " * (9 << 20)):
        path.write_bytes(raw)
        with pytest.raises(SetupError, match=r"roster\.json.*again"):
            Roster.read(path)
    with pytest.raises(SetupError, match="there is no file"):
        Roster.read(tmp_path / "none.json")
    with pytest.raises(SetupError, match="cannot be read"):
        Roster.read(tmp_path)
