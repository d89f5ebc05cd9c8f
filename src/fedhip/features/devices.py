"""Where to compute: checked before the work starts."""

from __future__ import annotations

import torch

from fedhip.errors import InputError


def resolve_device(name: str | torch.device | None = None) -> torch.device:
    """The device of this name, or the best there is; one that is not there is an error with the remedy."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"there is no device {str(name)!r}; use cpu, cuda or cuda:N") from error
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise InputError(f"the device {str(name)!r} needs a GPU, and torch {torch.__version__} finds none; use cpu")
        if (device.index or 0) >= count:
            raise InputError(f"there is no device {str(name)!r}; this machine has cuda:0 to cuda:{count - 1}, and cpu")
    elif device.type != "cpu":
        try:
            torch.zeros(1, device=device).cpu()
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise InputError(f"the device {str(name)!r} cannot be used here; use cpu, cuda or cuda:N") from error
    return device
