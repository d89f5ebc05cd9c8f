"""The ledger: no line can be changed, taken out, put in or moved, and a receipt finds a shortened one out."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhip.errors import FileError
from fedhip.runs.ledger import Ledger

FIELDS: dict[str, Any] = {"clients": {"north": "32-ab"}, "total": "32-cd", "models": "ef", "term": None, "beta": 0.5}


def a_ledger(names: tuple[str, ...] = ("west", "east", "süd")) -> Ledger:
    ledger = Ledger().with_entry("run", client=None, **FIELDS)
    for name in names:
        ledger = ledger.with_entry("join", client=name, **FIELDS)
    return ledger


def reread(path: Path, text: str) -> Ledger:
    path.write_text(text, encoding="utf-8")
    return Ledger.read(path)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    ledger = a_ledger()
    again = reread(tmp_path / "ledger.jsonl", ledger.to_text())
    assert again == ledger
    assert again.head == ledger.entries[-1]["hash"] != again.run == ledger.entries[0]["hash"]


def test_the_hash_is_sha256_of_the_other_fields_and_binds_to_the_line_before() -> None:
    """Computed here from the lines as anybody else would."""
    previous = "0" * 64
    for line in a_ledger().to_text().splitlines():
        entry = json.loads(line)
        found = entry.pop("hash")
        assert entry["previous"] == previous
        previous = hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()
        assert found == previous


@given(st.lists(st.text(st.characters(exclude_categories=()), max_size=20), max_size=4))
def test_any_name_a_client_may_have_keeps_to_its_line(names: list[str]) -> None:
    """Also one that ends a line in Unicode, or that no encoding holds."""
    ledger = a_ledger(tuple(names))
    text = ledger.to_text()
    assert len(text.splitlines()) == len(names) + 1
    again = Ledger(tuple(json.loads(line) for line in text.encode("utf-8").decode("utf-8").splitlines()))
    again.require_chain(Path("ledger.jsonl"))
    # A pair of lone surrogates is one letter in JSON; its hash is the same.
    assert again.head == ledger.head


def alterations(lines: list[str]) -> dict[str, list[str]]:
    found = {"swapped": [lines[0], lines[2], lines[1], *lines[3:]], "twice": [*lines[:2], lines[1], *lines[2:]]}
    for i in range(len(lines) - 1):  # the last one is a receipt's to miss
        found[f"line {i} dropped"] = lines[:i] + lines[i + 1 :]
    for i, line in enumerate(lines):
        entry = json.loads(line)
        for key, value in entry.items():
            others: list[Any] = [None, "x", 7] if key != "entry" else [None, i + 1, str(i)]
            for other in others:
                if other != value:
                    changed = [*lines[:i], json.dumps({**entry, key: other}), *lines[i + 1 :]]
                    found[f"line {i}: {key} = {other!r}"] = changed
            found[f"line {i}: no {key}"] = [
                *lines[:i],
                json.dumps({k: v for k, v in entry.items() if k != key}),
                *lines[i + 1 :],
            ]
        found[f"line {i}: one field more"] = [*lines[:i], json.dumps({**entry, "more": 1}), *lines[i + 1 :]]
    forged = Ledger((json.loads(lines[0]),)).with_entry("join", client="mallory", **FIELDS).to_text().splitlines()
    found["a forged line put in"] = [*forged, *lines[1:]]
    return found


def test_every_alteration_is_noticed(tmp_path: Path) -> None:
    lines = a_ledger().to_text().splitlines()
    for what, altered in alterations(lines).items():
        try:
            reread(tmp_path / "ledger.jsonl", "\n".join(altered) + "\n")
        except FileError:
            continue
        pytest.fail(what)


@pytest.mark.parametrize("field", ["previous", "entry"])
def test_a_line_with_a_hash_that_fits_must_also_fit_its_place(tmp_path: Path, field: str) -> None:
    """Both the number and the hash of the line before: here one is right and the other not."""
    first, second, *_ = a_ledger().entries
    wrong = {**second, field: "0" * 64 if field == "previous" else 2}
    del wrong["hash"]
    wrong["hash"] = hashlib.sha256(json.dumps(wrong, sort_keys=True).encode()).hexdigest()
    with pytest.raises(FileError, match="line 2 was altered"):
        reread(tmp_path / "ledger.jsonl", f"{json.dumps(first)}\n{json.dumps(wrong)}\n")


@pytest.mark.parametrize("text", ["", "\n", "[]\n", "1\n", "{}\n", "nonsense", "[" * 100_000, '{"schema": true}\n'])
def test_other_files_are_not_taken_for_a_ledger(tmp_path: Path, text: str) -> None:
    with pytest.raises(FileError, match=r"ledger\.jsonl"):
        reread(tmp_path / "ledger.jsonl", text)


def test_bytes_that_are_no_text_and_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with pytest.raises(FileError, match="missing"):
        Ledger.read(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match="not a ledger"):
        Ledger.read(path)


def test_a_whole_chain_of_lines_that_say_nothing_is_no_ledger(tmp_path: Path) -> None:
    """The hashes fit: whoever can write the file can compute them."""
    for fields in ({}, {**FIELDS, "client": None, "clients": ["north"]}):
        ledger = Ledger().with_entry("run", **fields)
        with pytest.raises(FileError, match="line 1"):
            reread(tmp_path / "ledger.jsonl", ledger.to_text())


def test_a_later_schema_asks_for_its_version(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="schema 2, this version reads 1"):
        reread(tmp_path / "ledger.jsonl", json.dumps({**a_ledger().entries[0], "schema": 2}))


def test_every_receipt_is_proof_of_its_line() -> None:
    ledger = a_ledger()
    for number, entry in enumerate(ledger.entries):
        assert ledger.require_receipt(json.loads(json.dumps(ledger.receipt(number))), "mine.json") == entry


def test_a_shortened_ledger_is_whole_by_itself_and_found_out_by_a_receipt(tmp_path: Path) -> None:
    ledger = a_ledger()
    receipt = ledger.receipt()
    shortened = reread(tmp_path / "ledger.jsonl", "".join(ledger.to_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(FileError, match=r"mine.json: entry 3 \(join\) is not in the ledger: .*rolled back"):
        shortened.require_receipt(receipt, "mine.json")
    rewritten = shortened.with_entry("forget", client="west", **FIELDS)
    with pytest.raises(FileError, match="rolled back"):
        rewritten.require_receipt(receipt, "mine.json")


def test_receipts_of_other_runs_and_altered_ones_are_refused() -> None:
    ledger, other = a_ledger(), a_ledger(("somebody",))
    with pytest.raises(FileError, match="of another run"):
        ledger.require_receipt({**ledger.receipt(), "run": "0" * 64}, "mine.json")
    with pytest.raises(FileError, match=r"another run|not in the ledger"):
        ledger.require_receipt({"run": ledger.run, "entry": other.entries[1]}, "mine.json")
    altered = {**ledger.receipt(), "entry": {**ledger.entries[-1], "client": "mallory"}}
    wrong: Any
    for wrong in (altered, {}, [], None, "x", {"run": ledger.run}, {"run": ledger.run, "entry": []}):
        with pytest.raises(FileError, match="not a receipt, or was altered"):
            ledger.require_receipt(wrong, "mine.json")
