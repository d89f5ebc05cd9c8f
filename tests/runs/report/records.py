"""Runs that look like real ones: numbers of a federation that was never run, drawn with a seed."""

from __future__ import annotations

import base64
import copy
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedhip.core.ridge.path import DEFAULT_ALPHAS
from fedhip.runs.report import RunRecord

CONFIG = """\
dataset = "sketches"
partition = "dirichlet"
clients = 50
concentration = 0.1
seed = 0
backbone = "fedhip-vit"
alpha = "loo"
beta = "auto"
"""
METHODS = ("local", "global", "fedhip")


def make_record(
    name: str = "sketches-50",
    *,
    clients: int | Sequence[str] = 50,
    classes: int | Sequence[str] = 20,
    methods: Sequence[str] = METHODS,
    seed: int = 0,
    test: bool = True,
    examples: int = 6,
) -> RunRecord:
    """A run with clients of unequal size and skew, of which the personalized model is mostly the best."""
    rng = np.random.default_rng(seed)
    client_names = list(map(str, range(clients))) if isinstance(clients, int) else list(clients)
    class_names = [f"class {i}" for i in range(classes)] if isinstance(classes, int) else list(classes)
    K, d = len(client_names), len(class_names)
    sizes = np.round(np.exp(rng.normal(np.log(150), 0.8, K))).astype(int) + 12
    train = np.stack([rng.multinomial(size, rng.dirichlet(np.full(d, 0.3))) for size in sizes])
    tests = np.stack(
        [rng.multinomial(size // 4 if test else 0, row / row.sum()) for size, row in zip(sizes, train, strict=True)]
    )
    base = rng.normal(0.6, 0.08, K)
    gain = {"local": -0.02, "global": 0.0, "fedhip": 0.09}
    rates = {m: np.clip(base + gain.get(m, 0.04) + rng.normal(0, 0.04, K), 0.05, 0.98) for m in methods}
    right = {m: np.round(rate * tests.sum(axis=1)).astype(int) for m, rate in rates.items()}
    alphas = rng.choice(DEFAULT_ALPHAS, K)
    loo = np.clip(
        base[:, None]
        + 0.1 * (1 - np.exp(-np.array(DEFAULT_ALPHAS) / 4))
        + rng.normal(0, 0.004, (K, len(DEFAULT_ALPHAS))),
        0,
        1,
    )
    details = {
        "schema": 1,
        "class_names": class_names,
        "alphas": list(DEFAULT_ALPHAS),
        "clients": {
            client: {
                "train_counts": train[k].tolist(),
                "test_counts": tests[k].tolist(),
                "loo_accuracy": loo[k].tolist(),
                "confusions": _confusions(
                    tests[k], int(tests[k].sum() - right.get("fedhip", tests.sum(axis=1))[k]), rng
                ),
                "temperature": 0.1,
            }
            for k, client in enumerate(client_names)
        },
        "examples": [_example(client_names[i % K], i % d, (i + 1) % d, rng) for i in range(examples)],
    }
    results = {
        "schema": 1,
        "fedhip": "0.1.0",
        "title": f"sketches · {K} clients, dirichlet, λ = 0.1, seed {seed} · fedhip-vit in bfloat16, 1280 wide",
        "config": {"dataset": "sketches", "clients": K, "concentration": 0.1, "seed": seed, "alpha": "loo"},
        "seed": seed,
        "num_clients": K,
        "num_classes": d,
        "feature_dim": 1280,
        "beta": 0.37,
        "only_local_classes": False,
        "methods": {
            m: _method(m, client_names, train.sum(axis=1), tests.sum(axis=1), right[m], alphas) for m in methods
        },
        "seconds": {"features": 21.3, "local training": 2.1, "aggregation": 0.04, "personalization": 1.4},
        "leave_one_out": {
            "alphas": list(DEFAULT_ALPHAS),
            "accuracy": loo.mean(axis=0).tolist(),
            "chosen": float(loo.max(axis=1).mean()),
        },
        "stale": None,
    }
    return RunRecord(name, results, details, CONFIG, [])


def _method(
    method: str,
    clients: Sequence[str],
    train: NDArray[np.int64],
    test: NDArray[np.int64],
    right: NDArray[np.int64],
    alphas: NDArray[np.float64],
) -> dict[str, Any]:
    accuracy = [float(r / n) if n else None for r, n in zip(right, test, strict=True)]
    known = np.array([a for a in accuracy if a is not None])
    worst = np.sort(known)[: max(1, round(len(known) / 10))]
    means = {
        "mean": float(known.mean()),
        "weighted": float(right.sum() / test.sum()),
        "std": float(known.std()),
        "worst_decile": float(worst.mean()),
    } if len(known) else dict.fromkeys(("mean", "weighted", "std", "worst_decile"))  # fmt: skip
    sent = 0 if method == "local" else 6557440
    return {
        "accuracy": means,
        "per_client": [
            {
                "client": client,
                "train": int(train[k]),
                "test": int(test[k]),
                "accuracy": accuracy[k],
                "alpha": float(alphas[k]) if method == "fedhip" else None,
            }
            for k, client in enumerate(clients)
        ],
        "rounds": 0 if method == "local" else 1,
        "seconds": 3.2,
        "upload_bytes_per_client": sent,
        "download_bytes_per_client": sent,
    }


def _confusions(test: NDArray[np.int64], errors: int, rng: np.random.Generator) -> list[list[int]]:
    """That many errors, on test rows drawn without replacement, each taken for one of the next three classes."""
    rows = rng.permutation(np.repeat(np.arange(len(test)), test))[:errors]
    found: dict[tuple[int, int], int] = {}
    for true in rows.tolist():
        predicted = (true + int(rng.integers(1, min(4, len(test))))) % len(test) if len(test) > 1 else true
        found[true, predicted] = found.get((true, predicted), 0) + 1
    return [[true, predicted, count] for (true, predicted), count in sorted(found.items())]


def _example(client: str, true: int, predicted: int, rng: np.random.Generator) -> dict[str, Any]:
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (28, 28), dtype=np.uint8)).save(file, "png")
    image = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return {"client": client, "true": true, "predicted": predicted, "image": image}


def untrained(record: RunRecord, client: str) -> RunRecord:
    """The same run, in which that client had no training rows."""
    results, details = copy.deepcopy(record.results), copy.deepcopy(record.details)
    for method in results["methods"].values():
        for row in method["per_client"]:
            if row["client"] == client:
                row |= {"train": 0, "alpha": None}
    details["clients"][client] |= {"train_counts": [0] * len(details["class_names"]), "loo_accuracy": None}
    return RunRecord(record.name, results, details, record.config, record.ledger)
