"""Work on fixed buffers, recorded once as a CUDA graph and replayed: a thousand kernels for the price of one launch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

#: Runs before the recording: libraries set themselves up in the first.
WARM_UPS = 2


class Recorded:
    """`work()`, which reads and writes tensors that stay where they are, and asks for no number on the host.

    On a GPU it is captured; what cannot be captured, and what runs elsewhere, is called again each time.
    """

    def __init__(self, work: Callable[[], None], device: torch.device) -> None:
        self._work = work
        self.graph = _captured(work, device) if device.type == "cuda" else None

    def __call__(self) -> None:
        """Once more."""
        if self.graph is None:
            self._work()
        else:
            self.graph.replay()


def _captured(work: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph | None:
    try:
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
    except RuntimeError:
        return None
    return graph


def buffer_like(tensor: Tensor) -> Tensor:
    """A copy to record with; what all clients share (an axis of stride 0) has no copy for each."""
    if tensor.stride(0) == 0:
        return tensor[:1].clone().expand_as(tensor)
    return tensor.clone(memory_format=torch.contiguous_format)


def fill(buffer: Tensor, tensor: Tensor) -> None:
    """Put a tensor of the same kind into a buffer."""
    if buffer.stride(0) == 0:
        buffer[0].copy_(tensor[0])
    else:
        buffer.copy_(tensor)
