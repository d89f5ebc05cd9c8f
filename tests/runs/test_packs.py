"""Runs of very many clients: models in packs, the same as in files of their own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedhip.cli.main import main
from fedhip.errors import FedHiPError
from fedhip.runs import Run
from fedhip.runs.packs import recording
from fedhip.simulation.many import rows as many_rows
from tests.runs.samples import CLASSES, WIDTH

#: Rows of each client: one alone, few, as many as there are features, more; and several of a size.
SIZES = (1, 2, 3, 5, 8, 10, 11, 12, 12, 12, 13, 30, 40, 6, 6, 6, 6, 4, 4, 9)
TO_THE_RIDGE = ("--head", "ridge", "--methods", "global,fedhip", "--no-statistics")


def file_of_many(path: Path, sizes: tuple[int, ...] = SIZES, seed: int = 0) -> Path:
    random = np.random.default_rng(seed)
    names = np.repeat(np.array([f"site {k}" for k in range(len(sizes))]), sizes)
    labels = random.integers(0, 3, len(names))
    features = random.normal(size=(3, WIDTH))[labels] + random.normal(size=(len(names), WIDTH))
    split = (random.random(len(names)) < 0.2).astype(np.int8)
    split[names == "site 5"] = 1  # who has nothing to train on
    mixed = random.permutation(len(names))
    np.savez(
        path, features=features[mixed], labels=labels[mixed], clients=names[mixed], split=split[mixed],
        class_names=np.array(CLASSES),
    )  # fmt: skip
    return path


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """The same round with a file for each client, and with packs of seven."""
    folder = tmp_path_factory.mktemp("many")
    data = file_of_many(folder / "many.npz")
    assert main(["run", "--features", str(data), *TO_THE_RIDGE, "--out", str(folder / "files"), "--quiet"]) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "MANY", 10)
        patch.setattr(many_rows, "PACK", 7)
        patch.setattr(many_rows, "_BLOCK_BYTES", 2000)
        assert main(["run", "--features", str(data), "--out", str(folder / "packs"), "--quiet"]) == 0
    return Run.open(folder / "files"), Run.open(folder / "packs")


def test_sum_and_models_are_the_same_bits(both: tuple[Run, Run]) -> None:
    files, packs = both
    assert packs.total() == files.total()
    assert packs.results["beta"] == files.results["beta"]
    assert packs.details["fold_betas"] == files.details["fold_betas"]
    assert packs.clients == list(files.clients)
    assert "site 5" not in packs.clients
    assert len(packs.packs) == 3
    assert {path.name for path in (packs.path / "models").iterdir()} == {path.name for path in packs.packs}
    for client in (None, *files.clients):
        assert packs.model_digest(client) == files.model_digest(client)


def test_what_is_said_of_all_is_the_same(both: tuple[Run, Run]) -> None:
    files, packs = both
    for method in ("global", "fedhip"):
        theirs, ours = files.results["methods"][method], packs.results["methods"][method]
        assert ours["accuracy"] == pytest.approx(theirs["accuracy"])
        assert ours["temperature"] == pytest.approx(theirs["temperature"])
        assert [ours[way] for way in ("rounds", "upload_bytes_per_client", "download_bytes_per_client")] == [
            theirs[way] for way in ("rounds", "upload_bytes_per_client", "download_bytes_per_client")
        ]
    ours, theirs = packs.results["leave_one_out"], files.results["leave_one_out"]
    assert ours["chosen"] == pytest.approx(theirs["chosen"])
    assert ours["accuracy"] == pytest.approx(theirs["accuracy"])
    assert packs.details["temperature"] == pytest.approx(files.details["temperature"])


def test_each_client_is_known_as_well(both: tuple[Run, Run]) -> None:
    files, packs = both
    lines = {entry["client"]: entry for entry in files.results["methods"]["fedhip"]["per_client"]}
    for path in packs.packs:
        pack, _ = packs.pack(path)
        for place, name in enumerate(pack.names):
            known, found = files.details["clients"][name], pack.found
            assert found.counts[place].tolist() == known["train_counts"]
            assert int(found.tests[place]) == lines[name]["test"]
            if lines[name]["accuracy"] is not None:
                assert int(found.right[place]) == round(lines[name]["accuracy"] * lines[name]["test"])
            if known["alpha"] is None:
                assert found.own[place] == ""
                assert bool(found.alpha[place].isnan())
                continue
            assert (found.own[place], float(found.alpha[place])) == (known["own"], known["alpha"])
            assert found.curve[place].tolist() == pytest.approx(known["loo_accuracy"])
            assert float(found.estimate[place]) == pytest.approx(known["loo_chosen"])
            assert found.log_losses[place].tolist() == pytest.approx(known["log_losses"], rel=1e-7)


def test_both_predict_alike(both: tuple[Run, Run], tmp_path: Path) -> None:
    rows = np.random.default_rng(4).normal(size=(20, WIDTH))
    for client in (None, "site 0", "site 12", "site 19"):
        np.testing.assert_allclose(both[0].proba(rows, client), both[1].proba(rows, client), rtol=1e-9)
    np.savez(tmp_path / "rows.npz", features=rows)
    words = ["predict", "--features", str(tmp_path / "rows.npz"), "--client", "site 3", "--csv"]
    for run, out in zip(both, ("a.csv", "b.csv"), strict=True):
        assert main([words[0], str(run.path), *words[1:], str(tmp_path / out)]) == 0
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()


def test_verify_and_show_read_packs(both: tuple[Run, Run], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(both[1].path)]) == 0
    assert main(["show", str(both[1].path)]) == 0
    shown = capsys.readouterr().out
    assert "20 clients" in shown
    assert "α from" in shown
    assert "a thousand to a file" in shown


@pytest.mark.parametrize("what", ["weights", "alpha", "names", "missing", "swapped", "more"])
def test_an_altered_pack_is_found(both: tuple[Run, Run], tmp_path: Path, what: str) -> None:
    import shutil

    from safetensors import safe_open
    from safetensors.torch import save_file

    shutil.copytree(both[1].path, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    first, second = run.packs[:2]
    if what == "missing":
        first.unlink()
    elif what == "more":
        (first.parent / "pack-00009.safetensors").write_bytes(first.read_bytes())
    elif what == "swapped":
        whole = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(whole)
    else:
        with safe_open(first, framework="pt") as file:
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            metadata = dict(file.metadata())
        if what == "names":
            metadata["names"] = json.dumps(["somebody", *json.loads(metadata["names"])[1:]])
        else:
            tensors[what].view(-1)[0] += 1e-9
        save_file(tensors, first, metadata)
    assert main(["verify", str(tmp_path / "run")]) == 1


def test_who_is_not_there_is_named(both: tuple[Run, Run]) -> None:
    with pytest.raises(FedHiPError, match=r"no client 'site 55'.*near it"):
        both[1].model("site 55")


@pytest.mark.parametrize("words", [["forget", "RUN", "--client", "site 3"], ["predict", "RUN", "--coverage", "0.9"]])
def test_what_packs_have_not_is_refused_in_one_line(
    both: tuple[Run, Run], tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "rows.npz", features=np.zeros((2, WIDTH)))
    rows = ["--features", str(tmp_path / "rows.npz"), "--client", "site 3"] if words[0] == "predict" else []
    before = sorted((path, path.read_bytes()) for path in both[1].path.rglob("*") if path.is_file())
    assert main([str(both[1].path) if word == "RUN" else word for word in words] + rows) != 0
    message = capsys.readouterr().err.strip()
    assert "so many clients" in message or "nobody can come, go or change" in message
    assert "\n" not in message
    assert before == sorted((path, path.read_bytes()) for path in both[1].path.rglob("*") if path.is_file())


def test_options_that_packs_do_not_have_take_the_ordinary_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MANY", 3)
    data = file_of_many(tmp_path / "few.npz", (12, 12, 12, 12))
    words = ["run", "--features", str(data), "--head", "ridge", "--alpha", "20", "--out", str(tmp_path / "run")]
    assert main([*words, "--quiet"]) == 0
    assert not Run.open(tmp_path / "run").packs
    assert len(Run.open(tmp_path / "run").clients) == 4


def test_a_client_without_anything_to_choose_by_has_the_global_model(both: tuple[Run, Run]) -> None:
    pack, _ = both[1].pack(both[1].packs[0])
    place = pack.names.index("site 5") if "site 5" in pack.names else None
    at = place if place is not None else 0
    if place is not None:
        assert torch.equal(pack.found.weights[at], both[1].model(None).weights)
