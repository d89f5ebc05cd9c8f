"""Round after round: reports, tests, checkpoints, and an end when numbers are no longer numbers."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedhip.core.choice.prior import Prior
from fedhip.core.tested import Tested
from fedhip.errors import FileError
from fedhip.methods.engine.clients import CheckedClients
from fedhip.methods.engine.laboratory import Laboratory, Models, sketch
from fedhip.methods.engine.method import Method
from fedhip.methods.engine.protocol import Evaluation, MethodRun, Protocol
from fedhip.simulation.client import Client
from fedhip.simulation.orders import participants
from fedhip.utils.files import whole_file
from fedhip.utils.progress import ReportProgress

#: Seconds between checkpoints.
CHECKPOINT_EVERY = 60.0
_FORMAT = "fedhip.method/1"


@dataclass
class TrainingProgress:
    """How far a run has come."""

    round: int = 0
    seconds: float = 0.0
    up: int = 0
    down: int = 0
    history: list[Evaluation] = field(default_factory=list)


def train_method(
    name: str,
    method: Method[Any],
    lab: Laboratory,
    report: ReportProgress,
    checkpoint: Checkpoint | None = None,
    probe_size: int = 0,
) -> MethodRun:
    """All rounds of a method, and the test of what they gave."""
    probe: list[float] | None = None
    protocol, progress, state = lab.protocol, TrainingProgress(), method.start()
    accuracy: list[float | None] = [None] * len(lab.tests)
    if checkpoint is not None:
        state, progress = checkpoint.read(state, progress)
    diverged = None if all_finite(state) else _divergence(progress.round, protocol)
    # Whether a round gave numbers is asked for several at once: each question waits for the device.
    unseen: list[tuple[Tensor, TrainingProgress]] = []

    def settle() -> str | None:
        """Look at the rounds nobody has looked at; the first that gave no numbers was the last."""
        nonlocal progress
        seen = torch.stack([fine for fine, _ in unseen]).tolist() if unseen else []
        after = [then for _, then in unseen]
        unseen.clear()
        if all(seen):
            return None
        progress = replace(after[seen.index(False)], seconds=progress.seconds)
        return _divergence(progress.round, protocol)

    def evaluate(models: Models) -> list[float | None]:
        found = lab.accuracies(models)
        known = [value for value in found if value is not None]
        mean = float(np.mean(known)) if known else None
        up, down = per_client(progress.up, lab), per_client(progress.down, lab)
        progress.history.append(Evaluation(progress.round, mean, progress.seconds, up, down))
        return found

    try:
        while diverged is None and progress.round < protocol.rounds:
            began, number = time.perf_counter(), progress.round
            present = participants(lab.size, protocol.participation, protocol.seed, number)
            new, traffic = method.round(state, number, present)
            state, progress.round = new, number + 1
            progress.up, progress.down = progress.up + traffic.up, progress.down + traffic.down
            unseen.append((finite(state), replace(progress)))
            every, done = protocol.evaluate_every, progress.round == protocol.rounds
            evaluated = bool(every) and progress.round % every == 0 and not done
            written = checkpoint is not None and checkpoint.due
            if done or evaluated or written or len(unseen) >= lab.ahead:
                diverged = settle()
            progress.seconds += time.perf_counter() - began
            if evaluated and diverged is None:
                evaluate(method.models(state, progress.round))
            if checkpoint is not None and written:
                checkpoint.write(state, progress)
            report(method.phase, progress.round, protocol.rounds)
    except BaseException:
        if checkpoint is not None:
            settle()
            checkpoint.write(state, progress)
        raise
    if checkpoint is not None:
        checkpoint.write(state, progress)
    priors: list[Prior | None] | None = None
    tested: list[Tested | None] = []
    if diverged is None:
        began = time.perf_counter()
        models = method.models(state, progress.round)
        diverged = None if all_finite(models) else _divergence(progress.round, protocol)
        progress.seconds += time.perf_counter() - began  # fine-tuning is part of a method
        if diverged is None:
            accuracy, tested = evaluate(models), lab.tested(models)
            if probe_size and (found := next(lab.test_scores(models))) is not None:
                probe = sketch(found, probe_size)
            if models.priors is not None:
                numbers = (lab.number.get(at) for at in range(len(lab.tests)))
                priors = [None if k is None else models.priors[k] for k in numbers]
    return MethodRun(
        name,
        accuracy,
        progress.round,
        progress.seconds,
        per_client(progress.up, lab),
        per_client(progress.down, lab),
        dict(method.options),
        history=progress.history,
        diverged=diverged,
        note=method.note,
        priors=priors,
        probe=probe,
        tested=tested,
    )


def per_client(total: int, lab: Laboratory) -> int:
    """The mean over the clients with training rows."""
    return round(total / lab.size)


def _divergence(round_: int, protocol: Protocol) -> str:
    return f"round {round_}, learning rate {protocol.learning_rate:g}"


def tensors_of(state: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a dataclass by name; those of a tuple are numbered."""
    for part in fields(state):
        value = getattr(state, part.name)
        if isinstance(value, Tensor):
            yield part.name, value
        elif isinstance(value, tuple):
            yield from ((f"{part.name}.{i}", tensor) for i, tensor in enumerate(value))


def finite(state: Any) -> Tensor:
    """Whether every number of a state is one, without waiting for it."""
    return torch.stack([torch.isfinite(t).all() for _, t in tensors_of(state) if t.is_floating_point()]).all()


def flat(state: Any) -> tuple[Tensor, ...]:
    """The tensors of a dataclass, one after another."""
    return tuple(tensor for _, tensor in tensors_of(state))


def like(fresh: Any, tensors: Sequence[Tensor]) -> Any:
    """A dataclass of the shape of `fresh`, with these tensors: what `flat` takes apart."""
    left = iter(tensors)
    values: dict[str, Any] = {}
    for part in fields(fresh):
        old = getattr(fresh, part.name)
        values[part.name] = next(left) if isinstance(old, Tensor) else tuple(next(left) for _ in old)
    return replace(fresh, **values)


def all_finite(state: Any) -> bool:
    """Whether every number of a state is one."""
    return bool(finite(state))


@dataclass
class Checkpoint:
    """The last whole round on disk: a safetensors file, of one method on one problem by one protocol."""

    path: Path
    fingerprint: str
    every: float = field(default_factory=lambda: CHECKPOINT_EVERY)
    last: float = field(default_factory=time.monotonic)

    @classmethod
    def of(
        cls,
        path: Path,
        name: str,
        clients: Sequence[Client],
        num_classes: int,
        protocol: Protocol,
        options: Mapping[str, float],
    ) -> Checkpoint:
        """With the fingerprint of all that decides the numbers."""
        settings = json.dumps([name, num_classes, protocol.to_dict(), dict(sorted(options.items()))])
        sha = hashlib.sha256(settings.encode() + CheckedClients.of(clients).digest)
        return cls(Path(path), sha.hexdigest())

    @property
    def due(self) -> bool:
        """Whether the last time is long enough ago."""
        return time.monotonic() - self.last >= self.every

    def write(self, state: Any, progress: TrainingProgress) -> None:
        """Replace the file as a whole."""
        tensors = {name: tensor.cpu().contiguous().clone() for name, tensor in tensors_of(state)}
        metadata = {"format": _FORMAT, "fingerprint": self.fingerprint, "progress": json.dumps(asdict(progress))}
        with whole_file(self.path) as temporary:
            save_file(tensors, temporary, metadata)
        self.last = time.monotonic()

    def read(self, fresh: Any, progress: TrainingProgress) -> tuple[Any, TrainingProgress]:
        """What the file holds, in the shape of a fresh state; that state itself where there is no file."""
        if not self.path.exists():
            return fresh, progress
        try:
            with safe_open(self.path, framework="pt") as file:
                metadata = file.metadata() or {}
                stored = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise FileError(f"{self.path} is not a readable checkpoint ({error}); remove it") from None
        if metadata.get("format") != _FORMAT:
            raise FileError(f"{self.path} is no checkpoint of a method; choose another path")
        if metadata.get("fingerprint") != self.fingerprint:
            raise FileError(
                f"{self.path} was written for other clients, another protocol or another method; "
                "remove it, or choose another path"
            )
        state = like(fresh, [stored[name].to(old.device) for name, old in tensors_of(fresh)])
        fields = json.loads(metadata["progress"])
        history = [Evaluation(**entry) for entry in fields.pop("history")]
        return state, TrainingProgress(**fields, history=history)
