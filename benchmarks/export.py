"""Size and accuracy of an exported model: a ridge on 2,000 sketches with the embedded backbone.

python benchmarks/export.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from fedhip import Statistics, solve_global
from fedhip.data import load_dataset
from fedhip.export import export_onnx
from fedhip.features import extract, load_backbone
from fedhip.features.images import resize_uint8
from fedhip.features.reference import BackboneReference
from fedhip.heads.model import Model


def main() -> None:
    """One line for each β."""
    data, backbone = load_dataset("sketches"), load_backbone("fedhip-vit", device="cpu")
    rows = np.arange(0, len(data.labels), 5)
    images = resize_uint8(np.asarray(data.images)[rows], backbone.image_size)
    features = extract(backbone, images, dtype=torch.float32, cache=False)
    total = Statistics.from_data(features, data.labels[rows], data.num_classes)
    reference = BackboneReference("fedhip-vit", backbone.identity, "float32")
    everything = torch.ones(data.num_classes, dtype=torch.bool)
    for beta in (1.0, 1e-6):
        weights = solve_global(total, beta)
        model = Model(None, weights, data.class_names, None, beta, 0.1, everything, False, reference, total.digest())
        with tempfile.TemporaryDirectory() as folder:
            whole = export_onnx(model, Path(folder) / "model.onnx")
            head = export_onnx(model, Path(folder) / "head.onnx", head_only=True)
            scores = onnxruntime.InferenceSession(whole.path).run(["scores"], {"images": images[:64]})[0]
        worst = np.abs(scores - model.scores(features[:64]).numpy()).max()
        print(
            f"β = {beta:g}: {whole.bytes / 1e6:.1f} MB, head alone {head.bytes / 1e6:.1f} MB; largest difference "
            f"{whole.difference:.1e} on random images, {worst:.1e} in scores of 64 sketches"
        )


if __name__ == "__main__":
    main()
