"""Which precision a backbone computes in where nobody says: a rule by the device, and not by a clock."""

from __future__ import annotations

from pathlib import Path

import torch

from fedhip.features.backbones import Backbone

#: What Linux says of the processors, a line of flags for each.
CPUINFO = Path("/proc/cpuinfo")
#: Flags of processors that multiply bfloat16 by themselves. Without one of them it is done in steps of float32, which
#: costs digits and time.
MULTIPLIES_BFLOAT16 = {"avx512_bf16", "amx_bf16"}


def choose_dtype(backbone: Backbone) -> torch.dtype:
    """bfloat16 on a GPU, and on a CPU that multiplies it by itself; float32 elsewhere.

    Of a CPU that is known on Linux alone, for x86. A backbone that has a precision of its own is float32 here.
    """
    if not backbone.mixed_precision:
        return torch.float32
    if backbone.device.type != "cpu" or processor_flags() & MULTIPLIES_BFLOAT16:
        return torch.bfloat16
    return torch.float32


def processor_flags() -> set[str]:
    """The flags that all processors of this machine have; none where they are not known."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    found = [set(line.partition(":")[2].split()) for line in lines if line.partition(":")[0].strip() == "flags"]
    return set.intersection(*found) if found else set()
