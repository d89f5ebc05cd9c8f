"""The paper's published figures, in percent, and where they stand in it.

All are of single runs with one backbone, ViT-MAE-Base. Its FedHiP rows hold, for each setting, the best α on the test
rows: the row for 50 clients of Table I is the maximum of each row of the α table.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

BACKBONE = "vit-mae-base"
CLIENTS = (50, 100)
CONCENTRATIONS = (0.1, 0.5, 1.0)
#: The rows of Table I in their order.
ROWS = (
    "fedavg", "fedavg-ft", "fedprox", "fedprox-ft", "ditto", "fedala", "feddbe", "fedas", "fedpcl", "fedselect",
    "fedhip",
)  # fmt: skip
TITLES: Mapping[str, str] = MappingProxyType({"cifar100": "CIFAR-100", "imagenet-r": "ImageNet-R"})
WHERE: Mapping[str, str] = MappingProxyType(
    {
        "table1": "Table I (overall comparison)",
        "alpha": "the table of α (50 clients, β = 0, CIFAR-100)",
        "beta": "the table of β (50 clients, α = 20, CIFAR-100)",
        "efficiency": "the section on efficiency (50 clients, λ = 0.1)",
        "invariance": "Theorem 3",
    }
)

# Columns: 50 clients with λ = 0.1, 0.5, 1.0, then 100 clients.
_TABLE1: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "cifar100": {
        "fedavg": (43.53, 47.75, 48.91, 39.28, 43.31, 43.28),
        "fedavg-ft": (58.81, 41.38, 37.73, 49.05, 31.37, 26.91),
        "fedprox": (42.74, 46.73, 48.19, 38.37, 42.38, 42.54),
        "fedprox-ft": (57.63, 41.32, 37.73, 48.64, 31.38, 26.91),
        "ditto": (69.80, 50.18, 43.72, 66.80, 41.32, 33.46),
        "fedala": (72.89, 52.60, 46.42, 70.63, 47.11, 38.20),
        "feddbe": (48.52, 49.96, 50.11, 43.20, 44.58, 44.41),
        "fedas": (56.70, 41.37, 37.78, 47.79, 30.73, 27.28),
        "fedpcl": (23.99, 11.33, 12.52, 25.83, 11.82, 11.13),
        "fedselect": (72.46, 49.44, 41.58, 68.44, 42.71, 34.41),
        "fedhip": (78.68, 64.58, 61.26, 76.92, 63.23, 60.08),
    },
    "imagenet-r": {
        "fedavg": (6.30, 7.14, 7.61, 4.90, 4.60, 5.00),
        "fedavg-ft": (20.42, 8.14, 6.15, 18.68, 7.52, 4.84),
        "fedprox": (6.28, 7.36, 7.21, 4.85, 4.50, 4.99),
        "fedprox-ft": (20.40, 8.11, 6.13, 18.70, 7.53, 4.82),
        "ditto": (25.35, 8.57, 6.05, 22.85, 7.88, 5.10),
        "fedala": (32.01, 12.29, 8.86, 28.20, 10.15, 5.91),
        "feddbe": (9.20, 8.46, 8.31, 7.40, 5.61, 5.78),
        "fedas": (20.32, 7.96, 6.00, 18.33, 7.37, 4.65),
        "fedpcl": (0.83, 0.88, 1.13, 1.72, 1.11, 1.23),
        "fedselect": (34.83, 14.94, 9.59, 28.11, 11.01, 7.09),
        "fedhip": (45.55, 32.37, 30.21, 43.77, 31.55, 28.06),
    },
}
#: The grid of both sensitivity tables.
GRID: tuple[float, ...] = tuple(5.0 * step for step in range(13))
#: The α table has β = 0, the β table α = 20.
ALPHA_TABLE_BETA, BETA_TABLE_ALPHA = 0.0, 20.0
_ALPHA: Mapping[float, tuple[float, ...]] = {
    0.1: (57.64, 73.48, 76.83, 78.10, 78.51, 78.68, 78.65, 78.53, 78.47, 78.45, 78.31, 78.10, 77.97),
    0.5: (57.32, 62.77, 64.36, 64.58, 64.39, 63.96, 63.60, 63.16, 62.79, 62.29, 61.90, 61.43, 61.09),
    1.0: (57.58, 60.12, 60.97, 61.26, 60.94, 60.53, 59.78, 59.32, 58.45, 58.04, 57.88, 57.33, 56.94),
}
_BETA: Mapping[float, tuple[float, ...]] = {
    0.1: (78.51, 78.65, 78.51, 78.53, 78.54, 78.51, 78.49, 78.37, 78.32, 78.23, 78.28, 78.22, 78.17),
    0.5: (64.39, 64.43, 64.30, 64.27, 64.17, 64.06, 63.95, 63.85, 63.77, 63.78, 63.75, 63.66, 63.60),
    1.0: (60.94, 60.88, 60.77, 60.54, 60.49, 60.38, 60.27, 60.17, 60.04, 59.96, 59.90, 59.86, 59.74),
}
#: "reduces computation and communication overheads by as much as 80% and 95%, respectively"
SAVED_COMPUTATION, SAVED_COMMUNICATION = 0.80, 0.95


def table1(dataset: str, method: str, num_clients: int, concentration: float) -> float | None:
    """The entry of Table I, as a share; None where there is none."""
    row = _TABLE1.get(dataset, {}).get(method)
    if row is None or num_clients not in CLIENTS or concentration not in CONCENTRATIONS:
        return None
    return row[len(CONCENTRATIONS) * CLIENTS.index(num_clients) + CONCENTRATIONS.index(concentration)] / 100


def sensitivity(study: str, dataset: str, num_clients: int, concentration: float, value: float) -> float | None:
    """The entry of the α or the β table, as a share; None where there is none."""
    row = (_ALPHA if study == "alpha" else _BETA).get(concentration)
    if dataset != "cifar100" or num_clients != 50 or row is None or value not in GRID:
        return None
    return row[GRID.index(value)] / 100
