"""A round with noise in the sum, against refits; what is protected, what counts, and what a client keeps."""

from __future__ import annotations

import math
import re
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.linear_model import Ridge

from fedhip.core.exact.fixedpoint import GridStatistics
from fedhip.errors import InputError
from fedhip.privacy.mechanism import Mechanism
from fedhip.privacy.public import PublicMap, PublicMoments
from fedhip.simulation.client import Client
from fedhip.simulation.private import (
    PRIVATE_ALPHAS,
    PrivacyOptions,
    PrivateFederation,
    federate_privately,
    personalize_privately,
    require_own_groups,
    simulate_privately,
)
from fedhip.simulation.private.federation import positive
from fedhip.simulation.private.units import counted_rows
from tests.drawing import examples

Real = NDArray[np.float64]
#: So little noise that what is found is what there is.
HARDLY = 1e7


def clients_of(
    rows: int = 60, width: int = 5, clients: int = 3, seed: int = 0, groups: int | None = None
) -> list[Client]:
    rng = np.random.default_rng(seed)
    means = 2.0 * rng.normal(size=(3, width))
    found = []
    for k in range(clients):
        y = rng.integers(0, 3, 2 * rows)
        F = means[y] + rng.normal(size=(2 * rows, width)) + 0.5 * rng.normal(size=width)
        of_group = None if groups is None else 100 * k + np.arange(rows) % groups
        found.append(Client(f"c{k}", (F[:rows], y[:rows]), (F[rows:], y[rows:]), of_group))
    return found


def public_of(width: int = 5, directions: int = 5) -> PublicMap:
    rng = np.random.default_rng(99)
    return PublicMap.of_moments(PublicMoments.of(1.5 * rng.normal(size=(200, width)), directions), "public rows")


def source(seed: int = 0) -> dict[str, object]:
    return {"randomness": np.random.default_rng(seed).bytes}


def test_with_hardly_any_noise_the_global_model_is_the_ridge_of_the_clipped_rows() -> None:
    clients, public = clients_of(), public_of()
    federation, _ = federate_privately(clients, 3, PrivacyOptions(HARDLY, public), 0.7, **source())  # type: ignore[arg-type]
    z = np.concatenate([public.clipped(torch.from_numpy(c.train[0])).numpy() for c in clients])
    y = np.concatenate([c.train[1] for c in clients])
    ridge = Ridge(alpha=0.7).fit(z, np.eye(3)[y])
    X = clients[0].test[0]
    unclipped = (torch.from_numpy(X) - public.mean) @ public.directions
    expected = ridge.predict(unclipped.numpy())
    np.testing.assert_allclose(federation.common.scores(X).numpy(), expected, atol=2e-3)
    assert federation.grid.counts.tolist() == np.bincount(y).tolist()
    assert 0.1 < np.mean(np.linalg.norm(z, axis=1) > 0.999) < 0.95  # some rows were clipped, and some were not


@pytest.mark.parametrize("directions", [5, 3])
@pytest.mark.parametrize("alpha", [0.0, 3.0, 1e6])
def test_a_clients_model_is_the_refit_of_noisy_others_and_its_own_rows(alpha: float, directions: int) -> None:
    """Others and noise from the sum, in the w directions; own rows as they are, in all, weighing 1 + α."""
    clients, public = clients_of(), public_of(directions=directions)
    federation, _ = federate_privately(clients, 3, PrivacyOptions(2.0, public), **source())  # type: ignore[arg-type]
    G, H = federation.sums
    client = clients[1]
    own = federation.own_sums(client)
    A, B = (part.double().numpy() * 2.0**-own.fraction_bits for part in (own.gram, own.cross))
    unit = np.diag([*[1.0] * directions, 2.0])  # the constant ½ counts as 1
    others, sums = positive(G - torch.from_numpy(unit @ A @ unit)).numpy(), H.numpy() - unit @ B
    F = np.c_[public.full(torch.from_numpy(client.train[0])).numpy(), np.ones(60)]
    Y = np.eye(3)[client.train[1]]

    def refit(keep: NDArray[np.bool_]) -> Real:
        penalty = np.diag([*[federation.beta] * 5, 0.0])
        left, right = penalty + (1 + alpha) * F[keep].T @ F[keep], (1 + alpha) * F[keep].T @ Y[keep]
        at = [*range(directions), 5]
        left[np.ix_(at, at)] += others
        right[at] += sums
        return np.linalg.solve(left, right)

    path = federation.path(client)
    np.testing.assert_allclose(path.weights(alpha).numpy(), refit(np.ones(60, bool)), rtol=1e-6, atol=1e-8)
    scores = path.loo_scores(alpha).numpy()
    for row in (0, 7, 59):
        np.testing.assert_allclose(scores[row], F[row] @ refit(np.arange(60) != row), rtol=1e-5, atol=1e-7)


def test_what_is_said_twice_is_said_alike_and_with_less_noise() -> None:
    """Σ z is in the matrix and in the sums by class: after both are heard, they agree, and are nearer to the truth."""
    clients, public = clients_of(rows=200), public_of()
    mechanism = PrivacyOptions(1.0, public).mechanism(clients)
    encoded = [mechanism.encoded(public, *c.train, 3, c.name) for c in clients]
    rng, raw, heard = np.random.default_rng(0), [], []
    truth = PrivateFederation.released(encoded[0] + encoded[1] + encoded[2], mechanism, public).sums[1]
    for _ in range(12):
        noisy = sum((own + mechanism.noise(3, rng.bytes) for own in encoded), start=0)
        assert isinstance(noisy, GridStatistics)
        federation = PrivateFederation.released(noisy, mechanism, public)
        G, H = federation.sums
        torch.testing.assert_close(G[:, -1], H.sum(dim=1))
        scale = torch.tensor([*[1.0] * 5, 2.0], dtype=torch.float64)[:, None]
        raw.append(noisy.cross.double() * 2.0**-noisy.fraction_bits * scale - truth)
        heard.append(H - truth)
    assert float(torch.stack(heard).square().mean()) < 0.9 * float(torch.stack(raw).square().mean())


def test_nobodys_noise_is_anybody_elses_and_none_comes_back() -> None:
    clients, options = clients_of(), PrivacyOptions(1.0, public_of())
    (first, sent), (second, again) = (federate_privately(clients, 3, options) for _ in range(2))
    assert first.digest != second.digest
    assert all(sent[name] != again[name] for name in sent)


def test_a_client_is_not_much_below_what_it_has_alone_however_large_the_noise() -> None:
    """The floor: labels that only this client's rows explain, and a sum that is hardly more than noise."""
    clients = clients_of(rows=120, clients=6, seed=3)
    outcome, _ = simulate_privately(
        clients,
        3,
        PrivacyOptions(0.3, public_of()),
        methods=("majority", "local", "global", "fedhip"),
        **source(2),  # type: ignore[arg-type]
    )
    alone, own = (float(np.mean([client.accuracy[m] for client in outcome.clients])) for m in ("local", "fedhip"))
    assert own >= alone - 0.02
    assert alone > 0.8
    assert all(client.alpha in PRIVATE_ALPHAS for client in outcome.clients)


def test_nothing_is_shared_but_the_sum() -> None:
    """A client's own model is a function of the released sum and of its own rows alone."""
    clients, options = clients_of(), PrivacyOptions(1.0, public_of())
    federation, sent = federate_privately(clients, 3, options, **source())  # type: ignore[arg-type]
    before = personalize_privately(federation, clients[0], sent=sent["c0"])
    released = PrivateFederation.released(federation.grid, federation.mechanism, options.public)
    after = personalize_privately(released, clients[0], sent=sent["c0"])
    assert torch.equal(before.model.weights, after.model.weights)
    assert before.alpha == after.alpha
    assert before.misses == []


@pytest.mark.parametrize(("unit", "rows", "most"), [("group", 3, 3), ("client", 7, 7), ("row", 1, 60)])
def test_a_unit_counts_with_no_more_rows_than_agreed(unit: str, rows: int, most: int) -> None:
    (client,) = clients_of(clients=1, groups=4)
    mechanism = Mechanism(1.0, 1e-5, unit, rows, 5, 9)  # type: ignore[arg-type]
    at = counted_rows(client, mechanism)
    assert len(np.unique(at)) == len(at)
    assert client.groups is not None
    of_unit = {"group": client.groups[at], "client": np.zeros(len(at)), "row": at}[unit]
    counts = np.unique(of_unit, return_counts=True)[1]
    assert (counts == rows).all()
    assert counts.max() <= most
    assert np.array_equal(at, counted_rows(client, mechanism))


@given(
    of=st.lists(st.integers(0, 5), min_size=1, max_size=4) | st.lists(st.integers(0, 5), min_size=20, max_size=40),
    most=st.integers(1, 3),
    seed=st.integers(0, 10_000),
    size=st.sampled_from([1e-3, 1.0, 1e8]),
    alike=st.booleans(),
)
@examples(40)
def test_without_any_group_the_others_give_the_same_and_the_sum_changes_by_no_more_than_it_may(
    of: list[int], most: int, seed: int, size: float, alike: bool
) -> None:
    """Add or remove: of groups of any size, with rows as far out as they like; counted in whole numbers."""
    rng, groups = np.random.default_rng(seed), np.array(of)
    F, y = size * rng.normal(size=(len(of), 5)), rng.integers(0, 3, len(of))
    if alike:  # then nothing of a group cancels
        F[:], y[:] = F[0], y[0]
    mechanism, public = Mechanism(1.0, 1e-5, "group", most, 5, 9), public_of()
    gone = groups != groups[0]

    def given_by(kept: NDArray[np.bool_]) -> tuple[set[int], GridStatistics]:
        client = Client("c", (F[kept], y[kept]), (F[:0], y[:0]), groups[kept])
        at = counted_rows(client, mechanism) if kept.any() else np.zeros(0, np.intp)
        own = mechanism.encoded(public, client.train[0][at], client.train[1][at], 3, "c")
        return set(np.flatnonzero(kept)[at].tolist()), own

    (all_rows, with_it), (others, without) = given_by(np.ones(len(of), bool)), given_by(gone)
    assert others == {row for row in all_rows if gone[row]}
    pairs = ((with_it.gram, without.gram), (with_it.cross, without.cross))
    square = sum(int(x) ** 2 for a, b in pairs for x in (a - b).flatten().tolist())
    assert math.sqrt(square) * 2.0**-mechanism.fraction_bits <= mechanism.sensitivity


def test_a_group_removed_changes_the_sum_by_no_more_than_the_sensitivity() -> None:
    (client,) = clients_of(clients=1, groups=4)
    assert client.groups is not None
    mechanism, public = Mechanism(1.0, 1e-5, "group", 5, 5, 9), public_of()  # 15 rows a group
    kept = client.groups != 2
    less = Client("c0", (client.train[0][kept], client.train[1][kept]), client.test, client.groups[kept])
    both, chosen = [], []
    for one in (client, less):
        at = counted_rows(one, mechanism)
        chosen.append({tuple(row) for row in one.train[0][at].tolist()})
        both.append(mechanism.encoded(public, one.train[0][at], one.train[1][at], 3, "c0"))
    square = sum(
        float((a - b).double().square().sum())
        for a, b in ((both[0].gram, both[1].gram), (both[0].cross, both[1].cross))
    )
    assert len(chosen[0] - chosen[1]) == 5
    assert chosen[1] < chosen[0]
    assert math.sqrt(square) * 2.0**-mechanism.fraction_bits <= mechanism.sensitivity


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta": 0.01}, "delta is 0.01, and there are 180 rows"),
        ({"unit": "house"}, "unit is 'house'"),
        ({"unit_rows": 4}, "unit_rows is 4, and the unit is a row"),
        ({"unit": "client"}, "the unit is a client, .*--unit-rows N"),
        ({"unit": "group", "unit_rows": 2}, "the unit is a group, and rows have none"),
        ({"epsilon": -1.0}, "epsilon is -1.0"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_is_released(options: dict[str, object], message: str) -> None:
    asked = {"epsilon": 1.0, "public": public_of(), **options}
    with pytest.raises(InputError, match=message):
        federate_privately(clients_of(), 3, PrivacyOptions(**asked), **source())  # type: ignore[arg-type]


def test_a_sum_that_the_noise_buries_is_refused() -> None:
    """By its noisy number of rows: once in some hundred sums that is large by chance, so of three two are enough."""
    told = []
    for seed in range(3):
        try:
            federate_privately(clients_of(), 3, PrivacyOptions(epsilon=0.01, public=public_of()), **source(seed))  # type: ignore[arg-type]
        except InputError as error:
            told.append(str(error))
    assert len(told) >= 2
    # A count that is no larger than its noise may make it names no epsilon: for one row it would be 70.
    assert all(
        re.search(r"too small for epsilon = 0\.01: .* rows it would do, or with a larger epsilon", one) for one in told
    )
    assert all("its epsilon is spent" in one for one in told)


def test_a_count_that_stands_out_of_its_noise_names_the_epsilon_that_would_do() -> None:
    """Many clients that may lose their shares: the matrix is buried, the number of rows is known."""
    mechanism = Mechanism(8.0, 1e-5, "row", 1, 400, 2)
    rows = 0.5 * mechanism.least_rows(2)
    assert rows > 3.0 * mechanism.unsure_rows(2)
    total = mechanism.noise(2, np.random.default_rng(0).bytes)
    total.cross[-1] += int(rows * 0.25 * 2**mechanism.fraction_bits)
    total.gram[-1, -1] += int(rows * 0.25 * 2**mechanism.fraction_bits)
    with pytest.raises(InputError, match=r"or with epsilon = 1\d"):
        PrivateFederation.released(total, mechanism, PublicMap.of_length(400, 1.0))


def test_a_group_of_two_clients_is_refused() -> None:
    clients = clients_of(groups=4)
    require_own_groups(clients)
    shared = [*clients, Client("d", clients[0].train, clients[0].test, clients[0].groups)]
    with pytest.raises(InputError, match="clients 'c0' and 'd' have rows of the same one"):
        require_own_groups(shared)


def test_no_warning_of_arithmetic_under_heavy_noise() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clients = clients_of(rows=200)
        federation, sent = federate_privately(clients, 3, PrivacyOptions(0.4, public_of()), **source())  # type: ignore[arg-type]
        found = personalize_privately(federation, clients[0], sent=sent["c0"])
    assert bool(found.model.weights.isfinite().all())


def test_clients_with_one_row_or_none_take_part_as_they_can() -> None:
    full, (F, y) = clients_of(rows=150), clients_of(seed=5)[0].train
    one, none = Client("one", (F[:1], y[:1]), (F[1:9], y[1:9])), Client("none", (F[:0], y[:0]), (F[9:20], y[9:20]))
    silent = Client("silent", (F[20:40], y[20:40]), (F[:0], y[:0]))
    methods = ("majority", "local", "global", "fedhip")
    outcome, sent = simulate_privately(
        [*full, one, none, silent],
        3,
        PrivacyOptions(4.0, public_of()),
        methods=methods,
        **source(),  # type: ignore[arg-type]
    )
    # Noise of everybody: else how many add some would tell whether "none" has a row.
    assert set(sent) == {"c0", "c1", "c2", "one", "none", "silent"}
    assert outcome.federation.mechanism.clients == 6  # type: ignore[attr-defined]
    found = {client.client: client for client in outcome.clients}
    assert found["none"].alpha is None
    assert found["none"].accuracy["fedhip"] == found["none"].accuracy["global"]
    assert found["one"].accuracy["fedhip"] is not None
    assert found["silent"].accuracy["fedhip"] is None


@pytest.mark.parametrize("alpha", [0.0, 2.5])
def test_an_alpha_that_is_given_is_used_by_all(alpha: float) -> None:
    outcome, _ = simulate_privately(
        clients_of(rows=100),
        3,
        PrivacyOptions(4.0, public_of()),
        alpha=alpha,
        methods=("global", "fedhip"),
        only_local_classes=True,
        **source(),  # type: ignore[arg-type]
    )
    assert {client.alpha for client in outcome.clients} == {alpha}


def test_a_client_that_is_a_unit_counts_with_as_many_rows_as_agreed() -> None:
    clients = clients_of(rows=40, clients=80)
    options = PrivacyOptions(8.0, public_of(), unit="client", unit_rows=2)
    federation, _ = federate_privately(clients, 3, options, **source())  # type: ignore[arg-type]
    assert federation.mechanism.honest == 78
    assert abs(int(federation.grid.counts.sum()) - 160) < 60
