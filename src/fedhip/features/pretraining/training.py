"""Pre-training by masked auto-encoding, on one GPU or on the CPU.

    pool on the device as uint8 → random crops → visible patches → encoder → decoder → error on masked patches

All randomness of a step comes from (seed, step), so that a resumed run continues exactly where it stood.
The host never waits for the device inside the loop, except to read the mean loss every `log_every` steps and
to write a checkpoint.
"""

from __future__ import annotations

import hashlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedhip.errors import FileError, InputError, LossError
from fedhip.features.devices import resolve_device
from fedhip.features.encoder.vit import ViT
from fedhip.features.pretraining.mae import MaskedAutoencoder, crop, draw_boxes
from fedhip.features.pretraining.pools import Pool
from fedhip.features.pretraining.recipe import Recipe
from fedhip.features.pretraining.state import CHECKPOINT, read_checkpoint, restore, write_checkpoint
from fedhip.utils.files import require_folder, write_text


@dataclass(frozen=True)
class TrainingStatus:
    """What one line of the training log says."""

    step: int
    loss: float
    learning_rate: float
    images_per_second: float
    seconds: float
    seconds_left: float

    def __str__(self) -> str:
        minutes, seconds = divmod(round(self.seconds_left), 60)
        return (
            f"step {self.step:>6}  loss {self.loss:.4f}  lr {self.learning_rate:.2e}  "
            f"{self.images_per_second:>9,.0f} images/s  {minutes:d}:{seconds:02d} left"
        )


@dataclass
class PretrainingOutcome:
    """The encoder and how it came about; `interrupted` by a signal, or simply not `finished` in time."""

    encoder: ViT
    finished: bool
    step: int
    seconds: float
    compile_seconds: float
    curve: list[dict[str, float]]
    interrupted: bool = False


def pretrain(
    pool: Pool,
    recipe: Recipe,
    out: Path,
    *,
    device: str | torch.device | None = None,
    compile_step: bool = False,
    resume: bool = False,
    checkpoint_every: float = 120.0,
    log_every: int = 100,
    stop_after: float | None = None,
    log: Callable[[TrainingStatus], None] | None = None,
) -> PretrainingOutcome:
    """Train until the schedule ends; checkpoints and the loss curve go to the folder `out`.

    With a schedule by minutes, the learning rate follows the time trained over the budget and reaches zero
    at the budget. Time trained is wall-clock time after the first step of each process, whose compilation
    is not counted. `stop_after` seconds of this process (compilation included), or an interrupt, end the
    run early with a checkpoint; `resume=True` goes on from there, and starts from the beginning where there
    is none.
    """
    check_intervals(checkpoint_every, log_every, stop_after)
    require_folder(out)
    run = TrainingRun(pool, recipe, out, resolve_device(device), compile_step)
    run.begin(resume)
    return run.train(checkpoint_every, log_every, stop_after, log)


def check_intervals(checkpoint_every: float, log_every: int, stop_after: float | None) -> None:
    """Intervals that never come, or come at once, are errors."""
    if log_every < 1:
        raise InputError(f"log_every is {log_every}; it must be at least 1 step")
    if not checkpoint_every > 0:
        raise InputError(f"checkpoint_every is {checkpoint_every}; it must be a positive number of seconds")
    if stop_after is not None and not stop_after > 0:
        raise InputError(f"stop_after is {stop_after}; it must be positive")


class TrainingRun:
    """One training run: model, optimiser, clock and curve."""

    def __init__(self, pool: Pool, recipe: Recipe, out: Path, device: torch.device, compile_step: bool) -> None:
        self.recipe, self.out, self.device = recipe, out, device
        self.digest = pool.digest
        # the pool lives on the device channel by channel, as the sampler reads it
        self.images = torch.from_numpy(pool.images).to(device).permute(0, 3, 1, 2).contiguous()
        counts = torch.tensor(pool.counts, dtype=torch.float64)
        weights = torch.tensor(pool.weights, dtype=torch.float64)
        self.shares = (weights.cumsum(0) / weights.sum()).float().to(device)
        self.starts = (counts.cumsum(0) - counts).long().to(device)
        self.counts = counts.long().to(device)
        config = recipe.encoder
        self.mean = torch.tensor(config.mean, device=device).view(-1, 1, 1)
        self.std = torch.tensor(config.std, device=device).view(-1, 1, 1)
        self.model = MaskedAutoencoder(config, recipe.decoder, recipe.mask_ratio)
        self.model.initialize(recipe.seed)
        self.model.to(device)
        self.optimizer = make_optimizer(self.model, recipe, device)
        self.generator = torch.Generator(device)
        self.loss: Callable[[Tensor, Tensor], Tensor] = self.model
        self.crop: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = crop
        if compile_step:
            self.loss = torch.compile(self.model, dynamic=False)
            self.crop = torch.compile(crop, dynamic=False)
        self.step = 0
        self.seconds = 0.0
        self.compile_seconds = 0.0
        self.curve: list[dict[str, float]] = []
        # losses since the last point of the curve: their sum, which stays on the device, and their number
        self.total, self.summed = torch.zeros((), device=device), 0

    def begin(self, resume: bool) -> None:
        """Load the checkpoint in `out`, if there is one and it may be continued."""
        path = self.out / CHECKPOINT
        if not path.exists():
            return
        if not resume:
            raise FileError(f"{path} is the checkpoint of an earlier run; resume it, or choose another folder")
        state, tensors = read_checkpoint(path)
        difference = self.recipe.first_difference(state["recipe"])
        if difference is None and state["pool"] != self.digest:
            difference = f"the pool was {state['pool']} and is now {self.digest}"
        if difference is not None:
            raise FileError(f"{path} belongs to another run: {difference}; choose another folder")
        restore(path, tensors, self.model, self.optimizer)
        total, summed = state.get("window", (0.0, 0))
        self.total, self.summed = torch.tensor(float(total), device=self.device), int(summed)
        self.step, self.seconds = int(state["step"]), float(state["seconds"])
        self.compile_seconds, self.curve = float(state["compile_seconds"]), list(state["curve"])

    def save(self) -> None:
        """Write the checkpoint and the loss curve; with the sum of the losses, so that a resumed run repeats it."""
        if self.summed:
            self.read()
        state = {
            "recipe": self.recipe.to_dict(),
            "pool": self.digest,
            "step": self.step,
            "seconds": self.seconds,
            "compile_seconds": self.compile_seconds,
            "curve": self.curve,
            "window": [float(self.total), self.summed],
        }
        write_checkpoint(self.out / CHECKPOINT, self.model, self.optimizer, state)
        write_curve(self.out / "loss.csv", self.curve)

    def draw(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of the pool, crops and mask noise of the present step; a function of (seed, step) alone."""
        self.generator.manual_seed(step_seed(self.recipe.seed, self.step))
        batch = self.recipe.batch
        u = torch.rand(2, batch, generator=self.generator, device=self.device, dtype=torch.float64)
        source = torch.searchsorted(self.shares, u[0].float()).clamp_(max=len(self.shares) - 1)
        rows = self.starts[source] + (u[1] * self.counts[source]).long()
        boxes = draw_boxes(batch, self.recipe.crop_area, self.generator, self.device)
        patches = self.recipe.encoder.num_patches
        noise = torch.rand(batch, patches, generator=self.generator, device=self.device)
        return rows, boxes, noise

    def advance(self, rate: float) -> Tensor:
        """One step of the optimiser; the loss stays on the device."""
        rows, boxes, noise = self.draw()
        with torch.no_grad():
            pixels = self.crop(self.images[rows], boxes, self.mean, self.std)
        fast = torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext()
        with fast:
            loss = self.loss(pixels, noise)
        loss.backward()  # type: ignore[no-untyped-call]
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.detach()

    def train(
        self,
        checkpoint_every: float,
        log_every: int,
        stop_after: float | None,
        log: Callable[[TrainingStatus], None] | None,
    ) -> PretrainingOutcome:
        """The loop."""
        recipe = self.recipe
        process_start = time.monotonic()
        clock = Clock(self.seconds)
        saved_at, first = process_start, True
        window_start, window_step = self.seconds, self.step
        self.model.train()
        with interrupts() as stop:
            while True:
                progress = recipe.progress(self.step, clock.seconds)
                early = stop.is_set() or (stop_after is not None and time.monotonic() - process_start > stop_after)
                if progress >= 1 or early:
                    break
                # by steps, the rate is that of the middle of the step: neither the first nor the last is zero
                self.total += self.advance(recipe.rate(progress + (0.5 / recipe.steps if recipe.steps else 0.0)))
                self.summed += 1
                if first:
                    self.synchronize()
                    self.compile_seconds += time.monotonic() - process_start
                    clock, first = Clock(self.seconds), False
                    window_step = self.step
                if self.step % log_every == 0 or self.step == recipe.steps:
                    self.note(clock, window_step, window_start, log)
                    window_start, window_step = self.seconds, self.step
                if time.monotonic() - saved_at > checkpoint_every:
                    self.synchronize()
                    self.seconds = clock.seconds
                    self.save()
                    saved_at = time.monotonic()
        if self.summed and progress >= 1:
            self.note(clock, window_step, window_start, log)
        elif early and not first:
            self.seconds = clock.seconds
        if not first:
            self.save()
        return PretrainingOutcome(
            self.model.encoder.eval(),
            progress >= 1,
            self.step,
            self.seconds,
            self.compile_seconds,
            self.curve,
            interrupted=stop.is_set() and progress < 1,
        )

    def read(self) -> float:
        """The mean loss since the last point of the curve, checked; the host waits for the device here."""
        loss = float(self.total) / self.summed
        if not math.isfinite(loss):
            kept = f"; the checkpoint in {self.out} is from before" if (self.out / CHECKPOINT).exists() else ""
            raise LossError(
                f"the loss is {loss} at step {self.step}; lower the learning rate (peak {self.recipe.peak:g}) "
                f"and start again{kept}"
            )
        return loss

    def note(
        self, clock: Clock, window_step: int, window_start: float, log: Callable[[TrainingStatus], None] | None
    ) -> None:
        """Add a point to the curve and to the log."""
        loss = self.read()
        self.total, self.summed = torch.zeros((), device=self.device), 0
        self.seconds = clock.seconds
        images_per_second = self.speed(window_step, window_start)
        progress = min(1.0, self.recipe.progress(self.step, self.seconds))
        rate = self.recipe.rate(progress)
        self.curve.append({"step": self.step, "loss": loss, "learning_rate": rate, "seconds": self.seconds})
        if log is not None:
            left = (self.seconds * (1 - progress) / progress) if progress else math.inf
            log(TrainingStatus(self.step, loss, rate, images_per_second, self.seconds, left))

    def speed(self, step: int, seconds: float) -> float:
        """Images per second since a step and a time."""
        return (self.step - step) * self.recipe.batch / max(self.seconds - seconds, 1e-9)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Clock:
    """Seconds trained: those of earlier processes, and those since this was made."""

    def __init__(self, before: float) -> None:
        self.before, self.start = before, time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self.before + time.monotonic() - self.start


def step_seed(seed: int, step: int) -> int:
    """A well-mixed seed for each step; the CPU's generator looks at its lower half alone."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{step}".encode(), digest_size=7).digest())


def make_optimizer(model: MaskedAutoencoder, recipe: Recipe, device: torch.device) -> torch.optim.AdamW:
    """AdamW; matrices decay, biases, norms and tokens do not."""
    parameters = list(model.parameters())
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.peak, betas=recipe.betas, fused=device.type == "cuda")


def write_curve(path: Path, curve: list[dict[str, float]]) -> None:
    """The loss curve as CSV."""
    rows = [f"{p['step']:.0f},{p['loss']:.6f},{p['learning_rate']:.6e},{p['seconds']:.1f}" for p in curve]
    write_text(path, "\n".join(["step,loss,learning_rate,seconds", *rows, ""]))


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """An event that the first interrupt or termination sets; the second interrupt is Python's usual one.

    A step is never cut in two, so that the checkpoint written afterwards is of a whole step.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.getsignal(kind) for kind in kinds}

    def handle(kind: int, frame: object) -> None:
        stop.set()
        signal.signal(kind, before[signal.Signals(kind)])

    for kind in kinds:
        signal.signal(kind, handle)
    try:
        yield stop
    finally:
        for kind in kinds:
            signal.signal(kind, before[kind])
