"""A run and a federation of the same agreement tell the same bytes: those of the vectors that travel."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedhip.features.lifts.kinds import LANDMARKS
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.sums.ridge import beta_shape
from fedhip.federation.sums.statistics import moments_vector, plan_of
from fedhip.federation.sums.traffic import traffic_of
from fedhip.federation.sums.vector import losses_vector, to_vector
from fedhip.heads import head_named
from fedhip.heads.options import options_of
from fedhip.heads.round import run_head, simulate
from fedhip.heads.task import Task
from tests.federation.samples import CLASSES, FOUR, WIDTH, clients, ridge_options

UP, DOWN = "upload_bytes_per_client", "download_bytes_per_client"


def agreement(**settings: Any) -> Agreement:
    usual: dict[str, Any] = {"name": "x", "sites": FOUR, "classes": CLASSES, "width": WIDTH, "fraction_bits": 32}
    return Agreement(**usual | {"quorum": 4, "threshold": 3, "max_rows": 99, "few_rows": True} | settings)


def asks(agreed: Agreement) -> list[str]:
    """The sums behind models."""
    prior = agreed.prior == "client"
    if agreed.head == "ridge":
        return ["statistics"] + ["beta"] * agreed.chooses_beta + ["prior"] * prior
    if agreed.head == "lda":
        return ["statistics"] + ["temperature", "scale", "prior"] * prior
    gradients = int(agreed.gradient_rounds or 0)
    return ["statistics", "temperature", *["gradient"] * gradients, "penalty", *["scale", "prior"] * prior]


def run(agreed: Agreement) -> dict[str, tuple[int, int]]:
    """What `fedhip run` tells of each method."""
    members, ridge, prior = clients(FOUR), ridge_options(agreed), agreed.prior
    outcome = simulate(
        members, len(CLASSES), alpha=agreed.alpha, beta=agreed.beta, prior=prior == "client", **vars(ridge)
    )
    told = {method: outcome.traffic(method)[1:] for method in outcome.methods}
    if agreed.head == "ridge":
        return told
    kind, given = head_named(agreed.head), {}
    if agreed.head == "logistic":
        given = {"gradient_rounds": float(agreed.gradient_rounds or 0)}
    options = options_of(kind, agreed.alpha, given)
    task = Task(members, len(CLASSES), options, ridge=ridge, prior=prior, beside=("local", "global"))
    return {kind.method: run_head(kind, task, outcome.federation).head.traffic[1:]}


@pytest.mark.parametrize("prior", ["none", "client"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"alpha": 2.0},
        {"beta": 1.0},
        {"columns": "plain", "beta": "gcv"},
        {"intercept": False, "standardize": False, "beta": 1.0},
        {"head": "lda"},
        {"head": "logistic"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())) or "usual",
)
@pytest.mark.sampled(3)
def test_a_run_tells_what_a_federation_tells(settings: dict[str, Any], prior: str) -> None:
    agreed = agreement(**settings, prior=prior)
    for method, (up, down) in run(agreed).items():
        expected = traffic_of(agreed, method, asks(agreed))
        assert (up, down) == (expected[UP], expected[DOWN]), method


def test_a_federation_with_masks_adds_a_census() -> None:
    plain, masked = (traffic_of(agreement(few_rows=few), "fedhip", ["statistics", "beta"]) for few in (True, False))
    assert {way: masked[way] - plain[way] for way in (UP, DOWN)} == {UP: 8 * len(CLASSES), DOWN: 8 * len(CLASSES)}


def test_bytes_are_those_of_the_vectors_that_travel() -> None:
    agreed, members = agreement(), clients(FOUR)
    outcome = simulate(members, len(CLASSES), **vars(ridge_options(agreed)))
    survey = moments_vector(members[0], agreed)
    statistics = to_vector(outcome.federation.encoding.statistics(members[0], len(CLASSES)))
    scores = losses_vector(torch.zeros(beta_shape(), dtype=torch.float64), 4)
    _, up, down = outcome.traffic("fedhip")
    assert up == survey.nbytes + statistics.nbytes + scores.nbytes
    assert down == survey.nbytes + statistics.nbytes


@pytest.mark.parametrize("kind", ["relu", "fourier", "nystroem", "nystroem-axes"])
def test_the_first_sum_of_a_lift_is_what_a_site_sends(kind: str) -> None:
    units: dict[str, Any] = {"columns": "plain"} if kind in LANDMARKS else {}
    units |= {} if kind == "relu" else {"lift_bandwidth": 1.0}
    agreed = agreement(lift=kind, lift_width=9, lift_seed=1, largest_feature=8.0, **units)
    assert plan_of(agreed).exchange == moments_vector(clients(FOUR)[0], agreed).nbytes
