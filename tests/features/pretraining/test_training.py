"""Training learns, resumes exactly, ends when it should, and leaves whole files."""

import csv
import dataclasses
import itertools
import json
import os
import signal
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from fedhip import FedHiPError
from fedhip.errors import FileError, InputError, LossError
from fedhip.features.encoder.checkpoints import load_encoder, save_encoder
from fedhip.features.encoder.vit import ViTConfig, patchify
from fedhip.features.pretraining import training as pretraining
from fedhip.features.pretraining.card import make_card, render, write_card
from fedhip.features.pretraining.mae import DecoderConfig, normalise_patches
from fedhip.features.pretraining.pools import Pool
from fedhip.features.pretraining.recipe import Recipe
from fedhip.features.pretraining.state import read_checkpoint, restore
from fedhip.features.pretraining.training import PretrainingOutcome, TrainingRun, TrainingStatus, pretrain
from tests.features.samples import waves

TINY = Recipe(
    encoder=ViTConfig(16, 4, 32, 2, 2),
    decoder=DecoderConfig(32, 1, 2),
    steps=12,
    batch=16,
    learning_rate=3e-3,
)
CPU = torch.device("cpu")


def pool(count: int = 64) -> Pool:
    return Pool(waves(count), ("waves",), (count,), (1.0,))


def weights(outcome: PretrainingOutcome) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in outcome.encoder.state_dict().items()}


@pytest.mark.slow
def test_training_beats_its_start_and_the_mean_of_each_patch(tmp_path: Path) -> None:
    images = pool(512)
    recipe = dataclasses.replace(TINY, steps=250, batch=64)
    seen: list[TrainingStatus] = []
    outcome = pretrain(images, recipe, tmp_path, device="cpu", log_every=10, log=seen.append)
    targets = normalise_patches(patchify(torch.from_numpy(images.images).permute(0, 3, 1, 2).double(), 4))
    predict_the_mean = float((targets**2).mean())
    assert outcome.finished
    assert outcome.step == 250
    assert outcome.curve[-1]["loss"] < 0.75 * predict_the_mean
    assert outcome.curve[-1]["loss"] < 0.6 * outcome.curve[0]["loss"]
    assert seen[-1].step == 250
    assert seen[-1].seconds_left == 0
    assert "images/s" in str(seen[-1])
    rows = list(csv.DictReader((tmp_path / "loss.csv").read_text().splitlines()))
    assert [int(row["step"]) for row in rows] == list(range(10, 251, 10))
    assert float(rows[-1]["loss"]) == pytest.approx(outcome.curve[-1]["loss"], abs=1e-6)


def test_resumed_run_equals_uninterrupted_run_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pretrain(pool(), TINY, tmp_path / "whole", device="cpu", log_every=3)
    advance = TrainingRun.advance

    def interrupted(self: TrainingRun, rate: float) -> torch.Tensor:
        loss = advance(self, rate)
        if self.step == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return loss

    monkeypatch.setattr(TrainingRun, "advance", interrupted)
    half = pretrain(pool(), TINY, tmp_path / "parts", device="cpu", log_every=3)
    assert (half.finished, half.interrupted, half.step) == (False, True, 6)
    monkeypatch.undo()
    rest = pretrain(pool(), TINY, tmp_path / "parts", device="cpu", log_every=3, resume=True)
    assert rest.finished
    assert [(p["step"], p["loss"]) for p in rest.curve] == [(p["step"], p["loss"]) for p in whole.curve]
    for key, value in weights(whole).items():
        assert torch.equal(value, weights(rest)[key]), key
    again = pretrain(pool(), TINY, tmp_path / "parts", device="cpu", resume=True)
    assert (again.finished, again.step) == (True, 12)


def test_a_killed_run_goes_on_from_between_two_points_of_the_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pretrain(pool(), TINY, tmp_path / "whole", device="cpu", log_every=6)
    advance = TrainingRun.advance

    def killed(self: TrainingRun, rate: float) -> torch.Tensor:
        if self.step == 10:
            raise MemoryError
        return advance(self, rate)

    monkeypatch.setattr(TrainingRun, "advance", killed)
    with pytest.raises(MemoryError):
        pretrain(pool(), TINY, tmp_path / "parts", device="cpu", log_every=6, checkpoint_every=1e-9)
    monkeypatch.undo()
    state = read_checkpoint(tmp_path / "parts" / "checkpoint.safetensors")[0]
    assert (state["step"], state["window"][1]) == (10, 4)
    rest = pretrain(pool(), TINY, tmp_path / "parts", device="cpu", log_every=6, resume=True)
    assert [(p["step"], p["loss"]) for p in rest.curve] == [(p["step"], p["loss"]) for p in whole.curve]
    for key, value in weights(whole).items():
        assert torch.equal(value, weights(rest)[key]), key


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"log_every": 0}, "log_every is 0"),
        ({"checkpoint_every": 0.0}, r"checkpoint_every is 0\.0"),
        ({"checkpoint_every": -1.0}, r"checkpoint_every is -1\.0"),
        ({"stop_after": 0.0}, "stop_after is"),
    ],
)
def test_intervals_that_make_no_sense(tmp_path: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        pretrain(pool(), TINY, tmp_path, device="cpu", **options)


@pytest.mark.parametrize(
    ("sizes", "named"),
    [((32, 1, 0), "heads is 0"), ((32, 0, 2), "depth"), ((30, 1, 2), "of 4"), ((32, 1, 5), "its 5 heads")],
)
def test_decoders_that_make_no_sense(sizes: tuple[int, int, int], named: str) -> None:
    with pytest.raises(InputError, match=named):
        DecoderConfig(*sizes)


def test_the_output_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(FedHiPError, match="out is a file"):
        pretrain(pool(), TINY, tmp_path / "out", device="cpu")


def test_seed_decides_and_nothing_else_does(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = pretrain(pool(), TINY, tmp_path / "1", device="cpu")
    torch.manual_seed(2)
    second = pretrain(pool(), TINY, tmp_path / "2", device="cpu")
    third = pretrain(pool(), dataclasses.replace(TINY, seed=1), tmp_path / "3", device="cpu")
    assert first.curve[-1]["loss"] == second.curve[-1]["loss"] != third.curve[-1]["loss"]


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves on by a hundredth of a second whenever somebody looks at it."""
    ticks = itertools.count()
    monkeypatch.setattr(pretraining, "time", types.SimpleNamespace(monotonic=lambda: next(ticks) / 100))


@pytest.mark.usefixtures("ticking")
def test_minutes_end_the_run_and_the_cosine_together(tmp_path: Path) -> None:
    recipe = dataclasses.replace(TINY, steps=None, minutes=1.5 / 60)
    outcome = pretrain(pool(), recipe, tmp_path, device="cpu", log_every=1)
    assert outcome.finished
    assert 1.5 - 0.05 <= outcome.seconds <= 1.5 + 0.05
    rates = [point["learning_rate"] for point in outcome.curve]
    assert rates[-1] < 0.01 * recipe.peak
    assert max(rates) > 0.98 * recipe.peak
    middle = min(outcome.curve, key=lambda point: abs(point["seconds"] - 1.5 * 0.525))
    assert middle["learning_rate"] == pytest.approx(recipe.peak / 2, rel=0.1)


@pytest.mark.usefixtures("ticking")
def test_stop_after_leaves_a_checkpoint_and_resume_keeps_the_clock(tmp_path: Path) -> None:
    recipe = dataclasses.replace(TINY, steps=None, minutes=1.0)
    outcome = pretrain(pool(), recipe, tmp_path, device="cpu", stop_after=0.3)
    assert not outcome.finished
    assert outcome.step > 2
    run = TrainingRun(pool(), recipe, tmp_path, CPU, compile_step=False)
    run.begin(resume=True)
    assert (run.step, run.seconds) == (outcome.step, outcome.seconds)


def test_checkpoints_are_not_overwritten_or_mixed_up(tmp_path: Path) -> None:
    pretrain(pool(), TINY, tmp_path, device="cpu")
    with pytest.raises(FileError, match="resume it, or choose another folder"):
        pretrain(pool(), TINY, tmp_path, device="cpu")
    with pytest.raises(FileError, match="batch was 16 and is now 8"):
        pretrain(pool(), dataclasses.replace(TINY, batch=8), tmp_path, device="cpu", resume=True)
    with pytest.raises(FileError, match="the pool was"):
        pretrain(pool(63), TINY, tmp_path, device="cpu", resume=True)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FileError, match="not a readable training checkpoint"):
        pretrain(pool(), TINY, tmp_path, device="cpu", resume=True)


def test_another_model_in_the_checkpoint(tmp_path: Path) -> None:
    pretrain(pool(), TINY, tmp_path, device="cpu")
    wider = dataclasses.replace(TINY, decoder=DecoderConfig(64, 1, 2))
    with pytest.raises(FileError, match=r"decoder\.width was 32 and is now 64"):
        pretrain(pool(), wider, tmp_path, device="cpu", resume=True)
    run = TrainingRun(pool(), wider, tmp_path, CPU, compile_step=False)
    with pytest.raises(FileError, match="another model: 'mask_token' does not fit"):
        restore(tmp_path, read_checkpoint(tmp_path / "checkpoint.safetensors")[1], run.model, run.optimizer)


def test_resume_without_a_checkpoint_starts(tmp_path: Path) -> None:
    assert pretrain(pool(), TINY, tmp_path, device="cpu", resume=True).finished


def test_a_crash_while_saving_keeps_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = TrainingRun(pool(), TINY, tmp_path, CPU, compile_step=False)
    run.save()
    before = (tmp_path / "checkpoint.safetensors").read_bytes()

    def crash(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("fedhip.features.pretraining.state.save_file", crash)
    with pytest.raises(OSError, match="disk full"):
        run.save()
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir() if "checkpoint" in p.name) == ["checkpoint.safetensors"]


def test_divergence_is_an_error_and_spares_the_checkpoint(tmp_path: Path) -> None:
    wild = dataclasses.replace(TINY, learning_rate=1e30)
    with pytest.raises(LossError, match=r"lower the learning rate .* and start again$"):
        pretrain(pool(), wild, tmp_path, device="cpu", log_every=4)
    assert not (tmp_path / "checkpoint.safetensors").exists()
    run = TrainingRun(pool(), wild, tmp_path, CPU, compile_step=False)
    run.save()
    run.begin(resume=True)
    with pytest.raises(LossError, match=r"the checkpoint in .* is from before"):
        run.train(1e9, 4, None, None)


def test_no_decay_on_biases_norms_and_tokens() -> None:
    run = TrainingRun(pool(), TINY, Path(), CPU, compile_step=False)
    decay = {id(p): group["weight_decay"] for group in run.optimizer.param_groups for p in group["params"]}
    for name, parameter in run.model.named_parameters():
        plain = name.endswith("bias") or "norm" in name or "token" in name
        assert decay[id(parameter)] == (0.0 if plain else 0.05), name


def test_weights_of_the_pool_decide_how_often_a_source_is_drawn() -> None:
    images = Pool(waves(40), ("a", "b", "c"), (10, 20, 10), (1.0, 0.0, 3.0))
    run = TrainingRun(images, dataclasses.replace(TINY, batch=4000), Path(), CPU, compile_step=False)
    rows = run.draw()[0].numpy()
    share = np.histogram(rows, [0, 10, 30, 40])[0] / 4000
    assert share == pytest.approx([0.25, 0, 0.75], abs=0.03)
    assert set(rows) == set(range(10)) | set(range(30, 40))


def test_checkpoint_holds_no_pickle(tmp_path: Path) -> None:
    TrainingRun(pool(), TINY, tmp_path, CPU, compile_step=False).save()
    with safe_open(tmp_path / "checkpoint.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["state"])["recipe"]["batch"] == 16


def test_card_and_encoder(tmp_path: Path) -> None:
    outcome = pretrain(pool(), TINY, tmp_path, device="cpu")
    save_encoder(tmp_path / "encoder.safetensors", outcome.encoder)
    assert load_encoder(tmp_path / "encoder.safetensors").config == TINY.encoder
    card = make_card(pool(), TINY, outcome, "cpu", {"toy": {"mean:2": {"accuracy": 0.5, "beta": 0.01}}})
    write_card(tmp_path, card)
    assert json.loads((tmp_path / "card.json").read_text())["cost"]["images_seen"] == 12 * 16
    page = (tmp_path / "card.md").read_text()
    assert "| waves | 64 | 100.0% |" in page
    assert "| mean:2 | 50.00% | 0.01 |" in page
    assert "Not measured." in render(make_card(pool(), TINY, outcome, "cpu", {}))


def test_signal_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pretraining.interrupts() as stop:
        assert signal.getsignal(signal.SIGINT) is not before
        assert not stop.is_set()
    assert signal.getsignal(signal.SIGINT) is before
