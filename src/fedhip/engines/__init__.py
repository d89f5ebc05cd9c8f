"""Where clients' work runs: in threads of this process, or as tasks of a Ray cluster.

Every step asks `fedhip.utils.parallel` for a pure function of each client; an engine answers with the same values, in
the same order, from wherever it computed them. What is summed is summed exactly, and so in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from fedhip.engines.cluster import bytes_of_a_task, require_ray
from fedhip.errors import InputError
from fedhip.simulation.client import Client
from fedhip.utils.progress import ReportProgress, silent

EngineName = Literal["local", "ray"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)

#: Tells an engine whose rows are at which places of the features, to train and to test on: they need not travel then.
Lend = Callable[[Sequence[Client], NDArray[Any], Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]], None]

__all__ = ["ENGINES", "EngineName", "engine_device", "on_engine", "require_engine"]


def require_engine(name: str, address: str | None, *, private: bool = False) -> None:
    """Refuse, before anything is computed, an engine that there is not, or that is not there."""
    if name not in ENGINES:
        raise InputError(f"there is no engine {name!r}; choose local or ray")
    if name == "local":
        if address is not None:
            raise InputError(f"a Ray cluster is named, {address!r}, and not used; add --engine ray, or leave it out")
        return
    if private:
        raise InputError("noise is drawn here alone: --epsilon is for --engine local")
    require_ray(address)


def engine_device(name: str, device: torch.device, asked: str | None) -> torch.device:
    """Where an engine's tasks compute: those of a cluster on processors."""
    if name == "local" or device.type == "cpu":
        return device
    if asked is not None:
        raise InputError(f"tasks of a Ray cluster compute on processors; leave --device {asked} out")
    return torch.device("cpu")


@contextmanager
def on_engine(
    name: str, address: str | None, *, width: int, largest: int, report: ReportProgress | None = None
) -> Iterator[Lend]:
    """Clients' work runs there; features are `width` wide, and no client has more than `largest` rows."""
    if name == "local":
        yield lambda clients, features, places: None
        return
    from fedhip.engines.on_ray import ray_engine

    with ray_engine(address, bytes_of_a_task(width, largest), report or silent) as engine:
        yield engine.lender.lend
