"""Training checkpoints: one safetensors file, with everything that is no tensor as JSON in its metadata.

One file, because two files cannot be replaced in one atomic move.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fedhip.errors import FileError
from fedhip.utils.files import whole_file

CHECKPOINT = "checkpoint.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def write_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.AdamW, state: dict[str, Any]) -> None:
    """Write weights, both moments of each, and the state."""
    tensors = {}
    for name, parameter in model.named_parameters():
        tensors[f"model/{name}"] = parameter.detach().cpu().contiguous()
        for moment in MOMENTS:
            if moment in optimizer.state[parameter]:
                tensors[f"{moment}/{name}"] = optimizer.state[parameter][moment].detach().cpu().contiguous()
    with whole_file(path) as temporary:
        save_file(tensors, temporary, {"format": "fedhip-pretraining", "state": json.dumps(state)})


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The state and the tensors in a file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        state: dict[str, Any] = json.loads(metadata["state"])
        for key in ("recipe", "pool", "step", "seconds", "compile_seconds", "curve"):
            state[key]
    except (SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise FileError(f"{path} is not a readable training checkpoint ({error}); remove it") from error
    return state, tensors


def restore(path: Path, tensors: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.AdamW) -> None:
    """Put weights and moments back; nothing changes if one does not fit."""
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        found = tensors.get(f"model/{name}")
        if found is None or found.shape != parameter.shape:
            raise FileError(f"{path} belongs to another model: {name!r} does not fit; choose another folder")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[f"model/{name}"])
            if f"step/{name}" in tensors:
                # AdamW keeps its step counter on the device only when fused, and on the host otherwise
                fused = bool(optimizer.defaults["fused"])
                optimizer.state[parameter] = {
                    "step": tensors[f"step/{name}"].to(parameter.device if fused else "cpu"),
                    "exp_avg": tensors[f"exp_avg/{name}"].to(parameter.device),
                    "exp_avg_sq": tensors[f"exp_avg_sq/{name}"].to(parameter.device),
                }
