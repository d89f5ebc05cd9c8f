"""What an exported model answers in onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def answers_of(path: Path, rows: NDArray[Any]) -> NDArray[Any]:
    """Scores and probabilities, side by side."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = session.run(["scores", "probabilities"], {"features": rows.astype(np.float32)})
    return np.concatenate(outputs, axis=1)
