"""The three phases against the paper's recursion, scikit-learn, and an inverse for each α."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from benchmarks.floor import bare_fixed_alpha, bare_phases, host_client
from benchmarks.measure import Setup, best_seconds, synthetic_rows
from benchmarks.table import Line, faster, left_out
from fedhip import PersonalizationPath, Statistics, aggregate, personalize, solve_global
from fedhip.core import DEFAULT_ALPHAS, RegularizationPath, RidgePath, default_betas, paper
from fedhip.core.rows import one_hot
from fedhip.heads.round import simulate

PAPER_ALPHAS = tuple(5.0 * i for i in range(13))
BETA, ALPHA = 1.0, 20.0


def section(setup: Setup) -> Iterator[Line]:
    """The three phases against the paper's recursion, scikit-learn, and an inverse for each α."""
    yield from against_the_paper(setup)
    yield from a_fixed_alpha(setup)
    yield from against_inverses(setup)
    yield from against_scikit_learn(setup)


def against_the_paper(setup: Setup) -> Iterator[Line]:
    """Each phase, and all, by sums and by the equations as they are printed."""
    K, m, d, rows = setup.pick(toy=(3, 12, 3, 15), quick=(20, 384, 50, 200), full=(50, 768, 100, 400))
    clients = [synthetic_rows(rows, m, d, seed, setup.device) for seed in range(K)]
    labelled = [(F, one_hot(y, d).to(setup.device)) for F, y in clients]
    statistics = [Statistics.from_data(F, y, d) for F, y in clients]
    uploads = [paper.local_training(F, Y, BETA) for F, Y in labelled]
    total, (S, M, G) = aggregate(statistics), paper.aggregate(uploads, BETA)
    assert close(solve_global(total, BETA), G)
    assert close(personalize(total, *clients[0], ALPHA, BETA), paper.personalize(S, M, *labelled[0], ALPHA, BETA, K))
    repeats = setup.pick(toy=1, quick=2, full=2)
    sizes = f"K = {K}, m = {m}, d = {d}, N_k = {rows}"
    one, one_paper = best_seconds(
        setup,
        lambda: [Statistics.from_data(F, y, d) for F, y in clients],
        lambda: [paper.local_training(F, Y, BETA) for F, Y in labelled],
        repeats=repeats,
    )
    yield faster(f"phase 1, {sizes}", one, "the paper's C and L (eqs. 4-7)", one_paper)
    two, two_paper, two_cheap = best_seconds(
        setup,
        lambda: solve_global(aggregate(statistics), BETA),
        lambda: paper.aggregate(uploads, BETA),
        lambda: recursion_without_intermediate_models(uploads, BETA),
        repeats=repeats,
    )
    yield faster("phase 2: the sum and one solve", two, "the paper's recursion (eqs. 9-12)", two_paper)
    yield faster("phase 2", two, "the recursion with one global model at the end", two_cheap)
    three, three_paper = best_seconds(
        setup,
        lambda: [personalize(total, F, y, ALPHA, BETA) for F, y in clients],
        lambda: [paper.personalize(S, M, F, Y, ALPHA, BETA, K) for F, Y in labelled],
        repeats=repeats,
    )
    yield faster("phase 3 at one α, all clients", three, "the paper's P (eqs. 13-14)", three_paper)
    yield faster("phases 1 to 3", one + two + three, "the paper's", one_paper + two_paper + three_paper)


def a_fixed_alpha(setup: Setup) -> Iterator[Line]:
    """A whole run at one α, from rows to tested models, beside one with leave-one-out and the printed equations."""
    N, m, d = setup.pick(toy=(60, 12, 3), quick=(10_000, 384, 50), full=(50_000, 768, 100))
    for K in setup.pick(toy=(3,), quick=(25,), full=(50, 100)):
        rows = [synthetic_rows(N // K, m, d, seed, setup.device, torch.float32) for seed in range(K)]
        members = [host_client(str(k), *client) for k, client in enumerate(rows)]

        def run(alpha: float | Literal["loo"], beta: float | Literal["auto"] = BETA, members: Any = members) -> object:
            return simulate(members, d, alpha=alpha, beta=beta, methods=("fedhip",), device=setup.device)

        def printed(rows: list[tuple[Tensor, Tensor]] = rows) -> list[Tensor]:
            return with_inverses([(F.double(), one_hot(y, d).to(F.device)) for F, y in rows])

        fixed, left_out, equations = best_seconds(setup, lambda: run(ALPHA), lambda: run("loo"), printed, repeats=2)
        what = f"a whole run at one α, K = {K}, m = {m}, d = {d}, {N:,} rows"
        yield faster(what, fixed, f"one with α among {len(DEFAULT_ALPHAS)} by leave-one-out", left_out, "at least 4 ×")
        yield faster(what, fixed, "the paper's equations with their inverses, as printed", equations, "at least 4 ×")
        statistics, _, every = bare_phases(rows, d)
        bare, bare_every, one = best_seconds(
            setup, statistics.run, every.run, bare_fixed_alpha(rows, d).run, repeats=setup.pick(toy=1, quick=2, full=2)
        )
        what = f"the bare products and factorisations of such a run, K = {K}"
        yield faster(what, bare + one, "those of leave-one-out", bare + bare_every)
        fixed, left_out = best_seconds(setup, lambda: run(ALPHA, "auto"), lambda: run("loo", "auto"), repeats=1)
        yield faster("the same, β chosen on rows left out", fixed, "α and β by leave-one-out", left_out)


def with_inverses(clients: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Equations 4-14 as they are printed: every inverse is one."""
    inv, identity = torch.linalg.inv, BETA * torch.eye(clients[0][0].shape[1]).to(clients[0][0])
    uploads = [(C := F.mT @ F + identity, inv(C) @ F.mT @ Y) for F, Y in clients]
    S, M = uploads[0]
    for k, (C, L) in enumerate(uploads[1:], start=2):
        before, S = S, S + C
        M = inv(S) @ before @ M + inv(S) @ C @ L
        _ = inv(S - (k - 1) * identity) @ S @ M
    K = len(clients)
    return [inv(S + ALPHA * F.mT @ F + identity - K * identity) @ (S @ M + ALPHA * F.mT @ Y) for F, Y in clients]


def recursion_without_intermediate_models(uploads: list[tuple[Tensor, Tensor]], beta: float) -> Tensor:
    """Equations 9-11 for each client and equation 12 once: the recursion at its cheapest."""
    S, M = uploads[0][0].clone(), uploads[0][1].clone()
    for C, L in uploads[1:]:
        before, S = S, S + C
        R = torch.linalg.cholesky(S)
        mu, nu = torch.cholesky_solve(before, R), torch.cholesky_solve(C, R)
        M = mu @ M + nu @ L
    H = S - (len(uploads) - 1) * beta * torch.eye(len(S), dtype=S.dtype, device=S.device)
    return torch.cholesky_solve(S @ M, torch.linalg.cholesky(H))


def against_inverses(setup: Setup) -> Iterator[Line]:
    """One client's α among 13 by exact leave-one-out, and its model."""
    rows, m, d = setup.pick(toy=(12, 16, 3), quick=(130, 384, 50), full=(400, 768, 100))
    F, y = synthetic_rows(rows, m, d, 0, setup.device)
    others = Statistics.from_data(*synthetic_rows(20 * rows, m, d, 1, setup.device), d)
    total, Y = others + Statistics.from_data(F, y, d), one_hot(y, d).to(setup.device)
    identity = torch.eye(m, dtype=torch.float64, device=setup.device)

    def chosen_model(total: Statistics) -> Tensor:
        path = PersonalizationPath(total, F, y, BETA)
        return path.weights(path.select(PAPER_ALPHAS))

    def chosen_model_alone() -> Tensor:
        return chosen_model(Statistics(total.gram, total.cross, total.counts))  # a fresh value remembers no factor

    def inverses() -> list[Tensor]:
        A_k, B_k = F.mT @ F, F.mT @ Y
        return [
            torch.linalg.inv(total.gram + alpha * A_k + identity) @ (total.cross + alpha * B_k)
            for alpha in PAPER_ALPHAS
        ]

    within, alone, inverse = best_seconds(setup, lambda: chosen_model(total), chosen_model_alone, inverses)
    what = f"phase 3: α among {len(PAPER_ALPHAS)} by leave-one-out and its model, N_k = {rows}, m = {m}, d = {d}"
    yield faster(what, within, "an inverse for each α, without leave-one-out", inverse)
    yield faster("the same, with the federation's own factorisation", alone, "the same inverses", inverse)


def against_scikit_learn(setup: Setup) -> Iterator[Line]:
    """The ridges that a user of scikit-learn would fit on all rows in one place."""
    if find_spec("sklearn") is None:
        yield left_out("global, personal and local models", "scikit-learn's Ridge and RidgeCV", "it is not installed")
        return
    if setup.device.type != "cpu":
        yield left_out("global, personal and local models", "scikit-learn's Ridge and RidgeCV", "it computes on a CPU")
        return
    from sklearn.linear_model import Ridge, RidgeCV

    N, own, m, d = setup.pick(toy=(60, 20, 12, 3), quick=(6_000, 200, 384, 50), full=(20_000, 400, 768, 100))
    F, y = synthetic_rows(N, m, d, 0, setup.device)
    X, Y = F.numpy(), one_hot(y, d).numpy()
    total = Statistics.from_data(F, y, d)
    repeats = setup.pick(toy=1, quick=2, full=2)

    def ridge(alpha: float = 0.0) -> Ridge:
        weights = np.where(np.arange(N) < own, 1.0 + alpha, 1.0) if alpha else None
        return Ridge(BETA, fit_intercept=False, solver="cholesky").fit(X, Y, sample_weight=weights)

    assert close(solve_global(total, BETA), torch.from_numpy(ridge().coef_.T))
    ours, theirs = best_seconds(
        setup, lambda: solve_global(Statistics.from_data(F, y, d), BETA), ridge, repeats=repeats
    )
    yield faster(f"global model of {N:,} rows, m = {m}, d = {d}", ours, "Ridge on all rows", theirs)

    assert close(personalize(total, F[:own], y[:own], ALPHA, BETA), torch.from_numpy(ridge(ALPHA).coef_.T))
    ours, theirs = best_seconds(
        setup, lambda: personalize(total, F[:own], y[:own], ALPHA, BETA), lambda: ridge(ALPHA), repeats=repeats
    )
    yield faster(
        f"one client's model, N_k = {own}, given the sum", ours, "Ridge on all rows, weighing its own 1 + α", theirs
    )

    betas = default_betas(total)

    def scored() -> Tensor:
        return RegularizationPath(total, betas).score(F, y).error

    def cross_validated(store: bool = False) -> RidgeCV:
        return RidgeCV(betas, fit_intercept=False, store_cv_results=store).fit(X, Y)

    squares = cross_validated(store=True).cv_results_
    assert np.allclose(scored().numpy(), squares.sum(axis=1).mean(axis=0), rtol=1e-6)
    ours, theirs = best_seconds(setup, scored, cross_validated, repeats=repeats)
    yield faster(f"leave-one-out over all rows at {len(betas)} values of β", ours, "RidgeCV on all rows", theirs)

    mine, labels = F[:own], y[:own]

    def alone() -> Tensor:
        path = RidgePath(mine, labels, d)
        return path.weights(path.select(betas))

    ours, theirs = best_seconds(
        setup, alone, lambda: RidgeCV(betas, fit_intercept=False).fit(X[:own], Y[:own]), repeats=repeats
    )
    yield faster(f"one client's own ridge, β among {len(betas)}", ours, "RidgeCV on its rows", theirs)


def close(a: Tensor, b: Tensor) -> bool:
    """The same to rounding."""
    return bool(torch.linalg.norm(a - b) <= 1e-7 * torch.linalg.norm(b))
