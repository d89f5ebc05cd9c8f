"""Each kind of tampering is found, by the check that is for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.heads.model import Model
from fedhip.runs import Ledger, Run, life, verify
from fedhip.runs.models import models_digest
from tests.runs.samples import make_run, the_client


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run to which a client came and from which one went."""
    path = tmp_path_factory.mktemp("verify") / "run"
    make_run(path, alpha=7.5, beta=2.0)
    life.join(Run.open(path), the_client("east"))
    life.forget(Run.open(path), "south")
    return path


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


def problems(path: Path, *receipts: Path) -> dict[str, str]:
    return {check.what: check.problem for check in verify(Run.open(path), receipts) if check.problem is not None}


def edit_json(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def flip(path: Path, position: int = -3) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def rechained(path: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Edit the entries, and give every line the hash that fits: what an attacker with the whole folder can do."""
    entries = json.loads(json.dumps(Run(path).ledger.entries))
    change(entries)
    ledger = Ledger()
    for entry in entries:
        fields = {k: v for k, v in entry.items() if k not in ("schema", "entry", "time", "event", "previous", "hash")}
        ledger = ledger.with_entry(entry["event"], **fields)
    (path / "ledger.jsonl").write_text(ledger.to_text())


def test_a_run_as_it_was_written_is_well(run: Path) -> None:
    checks = verify(Run.open(run), [run / "receipts" / "0002-forget.json"])
    assert [check.problem for check in checks] == [None] * len(checks)
    assert len(checks) == 15


def test_a_configuration_is_that_of_the_run(copy: Path) -> None:
    content = (copy / "config.toml").read_text()
    for altered in (content.replace("seed = 0", "seed = 1"), content + "more = 1\n", "nonsense"):
        (copy / "config.toml").write_text(altered)
        assert [*problems(copy)] == ["config.toml is what results.json says"]


def test_values_of_another_kind_are_a_problem_and_no_traceback(copy: Path) -> None:
    """As somebody leaves them who edits by hand: the file is named, and what hangs on it is said to be unknown."""
    details = json.loads((copy / "details.json").read_text())
    for key, value in (("columns", {"offset": [0.0], "exponent": ["x"]}), ("temperature", {"global": []})):
        (copy / "details.json").write_text(json.dumps({**details, key: value}))
        assert "details.json is that of the last entry" in problems(copy)


def test_a_receipt_says_which_schema_it_is_of(run: Path, tmp_path: Path) -> None:
    receipt = json.loads((run / "receipts" / "0002-forget.json").read_text())
    del receipt["schema"]
    (tmp_path / "mine.json").write_text(json.dumps(receipt))
    checks = verify(Run.open(run), [tmp_path / "mine.json"])
    assert "says schema None, not 1: it was altered" in str(checks[-1].problem)


def test_a_partition_is_that_of_the_run(copy: Path) -> None:
    content = (copy / "partition.json").read_text()
    (copy / "partition.json").write_text(content.replace('"seed": 0', '"seed": 1'))
    (what,) = problems(copy)
    assert what == "partition.json is that of the first entry"
    (copy / "partition.json").unlink()
    assert list(problems(copy)) == [what]
    rechained(copy, lambda entries: entries[0].pop("partition"))  # as before it was written down
    assert what not in problems(copy)


def model_byte(path: Path) -> None:
    flip(path / "models" / "north.safetensors")


def global_byte(path: Path) -> None:
    flip(path / "global.safetensors")


def statistics_byte(path: Path) -> None:
    flip(path / "statistics" / "north.safetensors")


def total_byte(path: Path) -> None:
    flip(path / "total.safetensors")


def swapped_models(path: Path) -> None:
    one, other = path / "models" / "north.safetensors", path / "models" / "west.safetensors"
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def swapped_statistics(path: Path) -> None:
    one, other = path / "statistics" / "north.safetensors", path / "statistics" / "west.safetensors"
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def other_beta(path: Path) -> None:
    edit_json(path / "results.json", lambda results: results.update(beta=2.5))


def other_alpha(path: Path) -> None:
    edit_json(path / "details.json", lambda details: details["clients"]["north"].update(alpha=7.0))


def better_accuracy(path: Path) -> None:
    edit_json(path / "results.json", lambda results: results["methods"]["fedhip"]["accuracy"].update(mean=0.999))


def other_temperature(path: Path) -> None:
    edit_json(path / "details.json", lambda details: details["temperature"].update(fedhip=0.5))


def other_classes(path: Path) -> None:
    edit_json(path / "details.json", lambda details: details["class_names"].reverse())


def other_own(path: Path) -> None:
    edit_json(path / "details.json", lambda details: details["clients"]["north"].update(own="32-00"))


def client_hidden(path: Path) -> None:
    edit_json(path / "details.json", lambda details: details["clients"].pop("north"))


def leftover_model(path: Path) -> None:
    shutil.copy(path / "models" / "north.safetensors", path / "models" / "south.safetensors")


def leftover_statistics(path: Path) -> None:
    shutil.copy(path / "statistics" / "north.safetensors", path / "statistics" / ".south.safetensors.1.tmp")


def model_gone(path: Path) -> None:
    (path / "models" / "north.safetensors").unlink()


def statistics_gone(path: Path) -> None:
    (path / "statistics" / "north.safetensors").unlink()


def all_statistics_gone(path: Path) -> None:
    shutil.rmtree(path / "statistics")


def another_valid_model(path: Path) -> None:
    file = path / "models" / "north.safetensors"
    model = Model.from_file(file)
    replace(model, weights=model.weights * 1.5).to_file(file)


def another_valid_model_with_its_digest_in_the_ledger(path: Path) -> None:
    another_valid_model(path)
    run = Run(path)
    digests: dict[str | None, str] = {client: run.model_digest(client) for client in [None, *run.clients]}
    shutil.rmtree(path / "receipts")
    rechained(path, lambda entries: entries[-1].update(models=models_digest(digests)))


def model_of_another_shape(path: Path) -> None:
    file = path / "models" / "north.safetensors"
    replace(Model.from_file(file), weights=torch.zeros(3, 3).double()).to_file(file)


def other_valid_statistics(path: Path) -> None:
    file = path / "statistics" / "north.safetensors"
    own = GridStatistics.from_file(file)
    (own + own).to_file(file)


def other_valid_total(path: Path) -> None:
    total = GridStatistics.from_file(path / "total.safetensors")
    (total + GridStatistics.from_file(path / "statistics" / "north.safetensors")).to_file(path / "total.safetensors")


def ledger_edited(path: Path) -> None:
    text = (path / "ledger.jsonl").read_text()
    (path / "ledger.jsonl").write_text(text.replace('"rows": 12', '"rows": 11', 1))


def ledger_line_gone(path: Path) -> None:
    lines = (path / "ledger.jsonl").read_text().splitlines(keepends=True)
    (path / "ledger.jsonl").write_text("".join([lines[0], lines[2]]))


def ledger_gone(path: Path) -> None:
    (path / "ledger.jsonl").unlink()


def a_join_that_never_was(path: Path) -> None:
    rechained(path, lambda entries: entries[1]["clients"].update(mallory="32-00"))


def a_forgetting_rewritten(path: Path) -> None:
    rechained(path, lambda entries: entries.__delitem__(-1))


def statistics_of_a_bystander_changed(path: Path) -> None:
    rechained(path, lambda entries: entries[1]["clients"].update(north="32-00"))


FOUND: list[tuple[Callable[[Path], None], str]] = [
    (model_byte, "every model is solved"),
    (global_byte, "every model is solved"),
    (statistics_byte, "the sum is the sum"),
    (total_byte, "the sum is that of the last entry"),
    (swapped_models, "every model is solved"),
    (swapped_statistics, "the sum is the sum"),
    (other_beta, "every model is solved"),
    (other_alpha, "every model is solved"),
    (other_classes, "every model is solved"),
    (better_accuracy, "results.json is"),
    (other_temperature, "details.json is"),
    (other_own, "the history adds up"),
    (client_hidden, "the history adds up"),
    (leftover_model, "no file of a client"),
    (leftover_statistics, "no file of a client"),
    (model_gone, "every model is solved"),
    (statistics_gone, "the sum is the sum"),
    (all_statistics_gone, "the sum is the sum"),
    (another_valid_model, "the models are those"),
    (another_valid_model_with_its_digest_in_the_ledger, "every model is solved"),
    (model_of_another_shape, "every model is solved"),
    (other_valid_statistics, "the sum is the sum"),
    (other_valid_total, "the sum is that of the last entry"),
    (ledger_edited, "the ledger's chain"),
    (ledger_line_gone, "the ledger's chain"),
    (ledger_gone, "the ledger's chain"),
    (a_join_that_never_was, "the history adds up"),
    (a_forgetting_rewritten, "the sum is that of the last entry"),
    (statistics_of_a_bystander_changed, "the history adds up"),
]


@pytest.mark.parametrize(("tamper", "check"), FOUND, ids=[tamper.__name__ for tamper, _ in FOUND])
def test_tampering_is_found(copy: Path, tamper: Callable[[Path], None], check: str) -> None:
    tamper(copy)
    found = problems(copy)
    assert any(what.startswith(check) for what in found), found
    assert all("\n" not in problem for problem in found.values())


def test_an_older_version_of_the_folder_is_well_by_itself_and_found_out_by_a_receipt(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run").path
    old = Path(shutil.copytree(path, tmp_path / "old"))
    life.forget(Run.open(path), "north")
    receipt = tmp_path / "receipt.json"
    shutil.copy(path / "receipts" / "0001-forget.json", receipt)
    assert problems(path, receipt) == {}
    shutil.rmtree(path)
    old.rename(path)
    assert problems(path) == {}
    found = problems(path, receipt)
    assert list(found) == ["receipt receipt.json"]
    assert "rolled back" in found["receipt receipt.json"]


def test_a_receipt_of_a_forgetting_holds_after_the_client_came_back(copy: Path, tmp_path: Path) -> None:
    receipt = copy / "receipts" / "0002-forget.json"
    life.join(Run.open(copy), the_client("south"))
    assert problems(copy, receipt) == {}


def test_what_is_no_receipt_is_said_to_be_none(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("nonsense")
    (tmp_path / "b.json").write_text("{}")
    found = problems(copy, tmp_path / "a.json", tmp_path / "b.json", tmp_path / "c.json")
    assert list(found) == ["receipt a.json", "receipt b.json", "receipt c.json"]
    other = make_run(tmp_path / "other").path
    assert "another run" in problems(copy, other / "receipts" / "0000-run.json")["receipt 0000-run.json"]


def test_a_tensor_that_is_not_checked_is_not_read(copy: Path) -> None:
    """Something more in a model's file changes nothing of the model."""
    file = copy / "models" / "north.safetensors"
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    save_file({**load_file(file), "more": torch.zeros(3)}, file, metadata=metadata)
    assert problems(copy) == {}
