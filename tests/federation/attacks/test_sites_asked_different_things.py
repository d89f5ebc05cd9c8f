"""A server that asks one site something else than the others: the sum less what it knows would be that site's own.

Without the question in the context of the secure sum, the first test found site c's number of rows exactly and its
feature sum to 1e-3 deviations, by a single gradient of four sites.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedhip.core.logistic.sums import GridModel
from fedhip.federation.secure_sum import Collector
from fedhip.federation.status_codes import SiteCode
from fedhip.federation.sums.logistic import fit_of, term_of
from fedhip.federation.sums.vector import Vector, digest_of
from fedhip.federation.transport.wire import Letter, RoundStep, by_site, context_of
from tests.federation.samples import CLASSES, FOUR, WIDTH, clients, survey_of
from tests.federation.table import LAYOUT, LaterTable, ThreeSums, model

VICTIM, OTHERS = "c", ("a", "b", "d")
Question = tuple[dict[str, Any], dict[str, Any]]


class RefusedError(Exception):
    """A site did not answer."""

    def __init__(self, site: str, step: RoundStep, code: SiteCode) -> None:
        super().__init__(site, step, code)
        self.site, self.step, self.code = site, step, code


def ask_each(table: LaterTable, number: int, questions: Mapping[str, Question]) -> Vector:
    """One sum in which the server asks every site what it likes: the sum, or who refused."""
    table.attempt += 1
    of_sum: Any = {"round": number, "attempt": table.attempt}
    envelope = replace(table.envelope, step=RoundStep.KEYS, **of_sum)
    first = questions[OTHERS[0]]
    context = context_of(Letter(envelope, *first), *table.told(first[0]["ask"]))
    collector = Collector(table.roster.keys, envelope.sum_session, context, table.trial.agreement.threshold)

    def answer(site: str, step: RoundStep, *question: Any) -> Letter:
        letter = table.ask(site, step, *question, **of_sum)
        if letter.code is not SiteCode.OK:
            assert (letter.body, letter.arrays) == ({}, {})
            raise RefusedError(site, step, letter.code)
        return letter

    keys = {site: answer(site, RoundStep.KEYS, *questions[site]).data("keys") for site in FOUR}
    sealed = {}
    for site in FOUR:
        sealed[site] = answer(site, RoundStep.SHARE, by_site("keys", keys)).mapping("shares")
    for site in FOUR:
        collector.keys(site, keys[site])
    collector.cohort()
    for site in FOUR:
        collector.shares(site, sealed[site])
    for site in FOUR:
        masked = answer(site, RoundStep.MASK, {"secure": True, **by_site("shares", collector.dealt_to(site))})
        collector.add(site, masked.array("vector"), masked.data("signature"))
    for site in collector.survivors():
        collector.unmask(site, answer(site, RoundStep.UNMASK, table.unmask(*FOUR)).data("shares"))
    return collector.result()


def require_refused(table: LaterTable, number: int, questions: Mapping[str, Question]) -> None:
    """Nobody deals shares, let alone sends a vector: neither the one who was asked otherwise nor the others."""
    with pytest.raises(RefusedError) as refused:
        ask_each(table, number, questions)
    assert (refused.value.step, refused.value.code) == (RoundStep.SHARE, SiteCode.SECURE_SUM)
    assert "server asked it something else" in table.trial.log(refused.value.site)
    for site in FOUR:
        assert (
            table.code(site, RoundStep.MASK, {"secure": True, **by_site("shares", {})}, round=number) is SiteCode.ORDER
        )


def each(others: Question, victim: Question) -> dict[str, Question]:
    return {site: victim if site == VICTIM else others for site in FOUR}


def test_a_gradient_of_one_site(tmp_path: Path) -> None:
    """W = 0 to all but c, whose gradient is then the sum less the class sums that the server has."""
    table = LaterTable(tmp_path)
    table.statistics()
    table.sum(2, *table.question("temperature"))
    fit = fit_of(table.total, LAYOUT, table.trial.bits)
    zero = GridModel(torch.zeros((WIDTH + 1, len(CLASSES)), dtype=torch.int32), 23)
    # All of c's rows into the last class, which nobody has.
    chosen = torch.zeros((WIDTH + 1, len(CLASSES)), dtype=torch.float64)
    chosen[-1, -1] = 1000.0
    questions = each(table.question("gradient", zero), table.question("gradient", GridModel.of(chosen)))

    def steal() -> None:
        told = term_of(ask_each(table, 3, questions), LAYOUT, fit.rows)
        # 1/4 for each row of the others, 1 for each of c's; standardised features add up to 0 over all sites, and the
        # column of ones to the rows.
        last = told.slopes[:, -1]
        last[-1] -= fit.rows / 4
        last /= 0.75
        (c,) = clients([VICTIM])
        own = fit.standardization.features(torch.tensor(c.train[0])).sum(dim=0)
        torch.testing.assert_close(last, own, rtol=0.0, atol=1e-3)
        pytest.fail(f"the server has the sum of c's features: {last}")

    with pytest.raises(RefusedError) as refused:
        steal()
    assert (refused.value.step, refused.value.code) == (RoundStep.SHARE, SiteCode.SECURE_SUM)


def test_gradients_are_refused_by_everybody(tmp_path: Path) -> None:
    table = LaterTable(tmp_path)
    table.statistics()
    table.sum(2, *table.question("temperature"))
    questions = each(table.question("gradient", model()), table.question("gradient", model(2.0)))
    require_refused(table, 3, questions)
    same = table.question("gradient", model(3.0))
    assert len(ask_each(table, 3, each(same, same)))  # one question to all of them is no attack


def test_penalties(tmp_path: Path) -> None:
    table = LaterTable(tmp_path)
    table.statistics()
    table.sum(2, *table.question("temperature"))
    sums = [table.sum(number, *table.question("gradient", model(float(number)))) for number in (3, 4)]
    body, arrays = table.question("penalty", model(3.0), model(4.0))
    arrays["sums"] = np.concatenate(sums)  # type: ignore[arg-type]
    right = {**body, "temperature": 2.0}, arrays
    require_refused(table, 5, each(right, ({**body, "temperature": 2.5}, arrays)))
    other = {**arrays, "sums": arrays["sums"] + np.uint64(1)}
    require_refused(table, 5, each(right, ({**body, "temperature": 2.0}, other)))


@pytest.mark.parametrize("head", ["lda", "logistic"])
def test_temperatures_about_another_sum(tmp_path: Path, head: str) -> None:
    settings = {"gradient_rounds": None, "prior": "client"} if head == "lda" else {}
    table = LaterTable(tmp_path, head=head, **settings)
    table.statistics()
    body, arrays = table.question("temperature")
    other = table.total.copy()
    LAYOUT.counts(other)[0] += 1
    made_up = {**body, "sum": digest_of(other)}, {"total": other}
    require_refused(table, 2, each((body, arrays), made_up))


def lda_until_scale(tmp_path: Path) -> tuple[LaterTable, dict[str, Any]]:
    table = LaterTable(tmp_path, head="lda", gradient_rounds=None, prior="client")
    table.statistics()
    table.sum(2, *table.question("temperature"))
    return table, {"ask": "scale", "sum": table.digest, "temperature": 2.0}


def test_scales_of_another_head(tmp_path: Path) -> None:
    table, body = lda_until_scale(tmp_path)
    require_refused(table, 3, each((body, {}), ({**body, "temperature": 3.0}, {})))


def test_priors_at_another_scale(tmp_path: Path) -> None:
    """A scale out of all proportion gives everybody else's losses the value that the server knows."""
    table, body = lda_until_scale(tmp_path)
    table.sum(3, body, {})
    body = {**body, "ask": "prior", "scale": 1.0}
    require_refused(table, 4, each(({**body, "scale": 1e300}, {}), (body, {})))


def test_priors_of_a_ridge_with_another_beta(tmp_path: Path) -> None:
    table = ThreeSums(tmp_path, prior="client")
    table.until_beta()
    table.sum(3, *table.for_beta())
    body = {"ask": "prior", "sum": table.digest, "beta": 1.0}
    require_refused(table, 4, each((body, {}), ({**body, "beta": 1e-9}, {})))


def test_scales_of_another_logistic_head(tmp_path: Path) -> None:
    """Weights of the head are the server's choice, as those of a gradient are."""
    table = LaterTable(tmp_path, prior="client")
    table.statistics()
    table.sum(2, *table.question("temperature"))
    table.sum(3, *table.question("gradient", model()))
    rows = (WIDTH + 1) * len(CLASSES)
    settings = {"penalty": 1.0, "temperature": 1.0, "curvature": 1.0}
    body = {"ask": "scale", "sum": table.digest, **settings}
    heads = [{"weights": np.full(rows, weight).view(np.uint64)} for weight in (0.0, 1.0)]
    require_refused(table, 4, each((body, heads[0]), (body, heads[1])))


def test_statistics_in_units_of_other_moments(tmp_path: Path) -> None:
    table = ThreeSums(tmp_path)
    table.survey()
    other = survey_of(("b", "c", "d"))
    body, arrays = table.for_statistics()
    require_refused(table, 2, each((body, arrays), ({**body, "sum": digest_of(other)}, {"moments": other})))


def test_the_scores_of_beta_about_another_sum(tmp_path: Path) -> None:
    table = ThreeSums(tmp_path)
    table.until_beta()
    body, arrays = table.for_beta()
    other = table.total.copy()
    LAYOUT.counts(other)[0] += 1
    require_refused(table, 3, each((body, arrays), ({**body, "sum": digest_of(other)}, {"total": other})))


def test_the_first_sum_with_words_that_only_one_site_reads(tmp_path: Path) -> None:
    """No site reads anything there yet; what a later version reads is bound all the same."""
    table = ThreeSums(tmp_path)
    table.until(RoundStep.HELLO)
    keys = {s: table.ask(s, RoundStep.KEYS, {"more": "words"} if s == VICTIM else {}).data("keys") for s in FOUR}
    for site in FOUR:
        assert table.code(site, RoundStep.SHARE, by_site("keys", keys)) is SiteCode.SECURE_SUM
