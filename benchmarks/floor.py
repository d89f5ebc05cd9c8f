"""Phase 1 to 3 against the bare matrix products and factorisations that they need.

The floor is those calls alone, on the same sizes and the same device, their arguments ready in float64: no check, no
conversion, no sum, no choice of α. What is above it is what the library adds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.measure import Setup, best_seconds, synthetic_rows
from benchmarks.table import Line, share
from fedhip.core import DEFAULT_ALPHAS, PersonalizationPath, Statistics, aggregate, solve_global
from fedhip.core.rows import one_hot
from fedhip.heads.round import simulate
from fedhip.simulation.client import Client
from fedhip.simulation.personalization import calibration_rows
from fedhip.utils.parallel import in_order

BETA = 1.0

ClientRows = tuple[Tensor, Tensor]


def section(setup: Setup) -> Iterator[Line]:
    """Phase 1 to 3 as multiples of the bare matrix products and factorisations they need."""
    K, m, d, N = setup.pick(toy=(3, 16, 4, 60), quick=(30, 384, 50, 9_000), full=(100, 768, 100, 48_000))
    clients, repeats = uneven_clients(K, m, d, N, setup.device), setup.pick(toy=1, quick=3, full=2)
    library = floor = 0.0
    floors = bare_phases(clients, d)
    for number, (ours, bare) in enumerate(zip(library_phases(clients, d), floors, strict=True), 1):
        mine, least = best_seconds(setup, ours.run, bare.run, repeats=repeats)
        yield times_the_floor(f"phase {number}, K = {K}, m = {m}, d = {d}, {N:,} rows", bare.needs(), mine, least)
        library, floor = library + mine, floor + least
    what = f"phases 1 to 3, {len(DEFAULT_ALPHAS)} values of α by leave-one-out"
    yield times_the_floor(what, "all these calls", library, floor, stated="at most 3 ×")
    members = [host_client(str(k), *rows) for k, rows in enumerate(clients)]
    whole, floor = best_seconds(
        setup,
        lambda: simulate(members, d, beta=BETA, methods=("global", "fedhip"), device=setup.device),
        lambda: [bare.run() for bare in floors],
        repeats=repeats,
    )
    what = "a whole run: rows to the device, exact sums on the grid, digests, calibration, tests"
    yield times_the_floor(what, "the same calls", whole, floor, stated="at most 1.3 ×")


def times_the_floor(what: str, against: str, ours: float, floor: float, stated: str = "") -> Line:
    """How many times the floor."""
    return share(what, ours / floor, against, stated, ours=ours, floor=floor)


def uneven_clients(K: int, m: int, d: int, N: int, device: torch.device) -> list[ClientRows]:
    """K clients of N rows together, in float32 as extraction gives them."""
    sizes = N * np.random.default_rng(0).dirichlet(np.full(K, 5.0))
    return [synthetic_rows(max(2, int(rows)), m, d, k, device, torch.float32) for k, rows in enumerate(sizes)]


def host_client(name: str, F: Tensor, y: Tensor) -> Client:
    """As a simulation takes it, with a single test row."""
    features, labels = F.cpu().numpy(), y.numpy()
    return Client(name, (features, labels), (features[:1], labels[:1]))


@dataclass(frozen=True)
class Phase:
    """The same work for each item: clients side by side on a CPU's cores, one after another on a GPU."""

    work: Callable[[Any], object]
    items: Sequence[object]
    device: torch.device

    def run(self) -> list[object]:
        """All of it."""
        return list(in_order(self.work, self.items, self.device))

    def needs(self) -> str:
        """Its products and factorisations, counted as they are called."""
        with Counting() as counting:
            for item in self.items:
                self.work(item)
        return str(counting)


def library_phases(clients: list[ClientRows], d: int) -> tuple[Phase, Phase, Phase]:
    """The three phases, each given what the ones before it gave."""
    device = clients[0][0].device
    local_training = Phase(lambda rows: Statistics.from_data(rows[0], rows[1], d), clients, device)
    uploads: Any = local_training.run()
    total = aggregate(uploads)
    solve_global(total, BETA)

    def personal(rows: ClientRows) -> Tensor:
        path = PersonalizationPath(total, *rows, BETA)
        return path.weights(path.select())

    return (
        local_training,
        Phase(lambda uploads: solve_global(aggregate(uploads), BETA), [uploads], device),
        Phase(personal, clients, device),
    )


def bare_phases(clients: list[ClientRows], d: int) -> tuple[Phase, Phase, Phase]:
    """The calls that the three phases cannot do without."""
    device, alphas = clients[0][0].device, len(DEFAULT_ALPHAS)
    ready = [(F.double(), one_hot(y.to(device), d)) for F, y in clients]
    m = ready[0][0].shape[1]
    H = BETA * torch.eye(m, dtype=torch.float64, device=device)
    B = torch.zeros(m, d, dtype=torch.float64, device=device)
    for F, Y in ready:
        H, B = H + F.mT @ F, B + F.mT @ Y
    R = torch.linalg.cholesky(H)
    U = torch.linalg.solve_triangular(R, B, upper=False)
    shrunk = torch.randn(m, alphas * d, dtype=torch.float64, device=device)

    def statistics(rows: ClientRows) -> tuple[Tensor, Tensor]:
        F, Y = rows
        return F.mT @ F, F.mT @ Y

    def system(H: Tensor) -> Tensor:
        R = torch.linalg.cholesky(H)
        U = torch.linalg.solve_triangular(R, B, upper=False)
        return unwhitened(R, U)

    def personal(rows: ClientRows) -> Tensor:
        F, _ = rows
        W = torch.linalg.solve_triangular(R.mT, F, upper=True, left=False)
        fit = W @ U
        wide = len(F) <= m
        Q = torch.linalg.eigh(W @ W.mT if wide else W.mT @ W).eigenvectors
        E = Q if wide else W @ Q
        coefficients, r = E.mT @ fit, E.shape[1]
        _ = E @ shrunk[:r]  # the residuals at every α
        _ = E @ shrunk[:r, :alphas], E @ shrunk[:r, :alphas]  # 1 − h at every α, and its bound
        return unwhitened(R, W.mT @ (E @ coefficients))

    return Phase(statistics, ready, device), Phase(system, [H], device), Phase(personal, ready, device)


def bare_fixed_alpha(clients: list[ClientRows], d: int) -> Phase:
    """The calls that phase 3 at one α cannot do without, that of its model and of both models' rows left out."""
    ready = [(F.double(), one_hot(y.to(F.device), d)) for F, y in clients]
    H = BETA * torch.eye(ready[0][0].shape[1], dtype=torch.float64, device=ready[0][0].device)
    for F, _ in ready:
        H = H + F.mT @ F
    R, B = torch.linalg.cholesky(H), ready[0][0].mT @ ready[0][1]
    U = torch.linalg.solve_triangular(R, B, upper=False)

    def left_out(R: Tensor, U: Tensor, F: Tensor) -> Tensor:
        W: Tensor = torch.linalg.solve_triangular(R.mT, F[calibration_rows(len(F))], upper=True, left=False)
        return W @ U

    def personal(rows: ClientRows) -> Tensor:
        F, _ = rows
        _ = left_out(R, U, F)
        own = torch.linalg.cholesky(H)
        V = torch.linalg.solve_triangular(own, B, upper=False)
        _ = left_out(own, V, F)
        return unwhitened(own, V)

    return Phase(personal, ready, H.device)


def unwhitened(R: Tensor, T: Tensor) -> Tensor:
    """R⁻ᵀ T."""
    weights: Tensor = torch.linalg.solve_triangular(R.mT, T, upper=True)
    return weights


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts matrix products with their operations, triangular solves and factorisations."""

    NAMES: ClassVar = {
        "mm": "products",
        "linalg_cholesky_ex": "Cholesky factorisations",
        "linalg_solve_triangular": "triangular solves",
        "_linalg_eigh": "eigendecompositions",
    }

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()
        self.operations = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count it and do it."""
        name = func.overloadpacket.__name__
        if name in self.NAMES:
            self.calls[self.NAMES[name]] += 1
        if name == "mm":
            self.operations += 2 * args[0].shape[0] * args[0].shape[1] * args[1].shape[1]
        return func(*args, **(kwargs or {}))

    def __str__(self) -> str:
        told = [f"{self.calls[name]:,} {name}" for name in self.NAMES.values() if self.calls[name]]
        return ", ".join(told) + f" ({self.operations / 1e9:,.1f} GFLOP in products)" * bool(self.operations)
