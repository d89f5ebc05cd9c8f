"""What a site refuses in the sums after the statistics', from a server that asks what it likes."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedhip.core.logistic.sums import GridModel
from fedhip.federation.site.site import Site
from fedhip.federation.status_codes import SiteCode
from fedhip.federation.sums.logistic import fit_of, term_of
from fedhip.federation.sums.vector import Vector, digest_of, losses_of, to_vector
from fedhip.federation.transport.wire import RoundStep, by_site
from tests.federation.samples import CLASSES, FOUR, ONE_SUM, WIDTH, clients, encoding, sum_of, survey_of
from tests.federation.table import LAYOUT, LaterTable, Table, ThreeSums, model


@pytest.fixture
def table(tmp_path: Path) -> LaterTable:
    table = LaterTable(tmp_path)
    table.statistics()
    return table


def test_sums_by_hand(table: LaterTable) -> None:
    from fedhip.core.exact.fixedpoint import round_features
    from fedhip.core.logistic.sums import logistic_term

    table.sum(2, *table.question("temperature"))
    found = table.sum(3, *table.question("gradient", model()))
    fit = fit_of(table.total, LAYOUT, table.trial.bits)
    terms = (
        logistic_term(round_features(torch.tensor(c.train[0]), table.trial.bits), c.train[1], model(),
                      fit.standardization, rows=fit.rows)
        for c in clients(FOUR)
    )  # fmt: skip
    assert term_of(found, LAYOUT, fit.rows) == sum(terms)  # type: ignore[arg-type]


def test_a_second_unmasking_of_a_sum(table: LaterTable) -> None:
    question = table.question("gradient", model())
    table.sum(2, *table.question("temperature"))
    table.sum(3, *question)
    assert table.keys("a", 3, *question) is SiteCode.ANSWERED
    of_sum: Any = {"round": 3, "attempt": table.attempt}
    # The very same question gets the very same answer; no other list of survivors gets any.
    assert table.code("a", RoundStep.UNMASK, table.unmask(*FOUR), **of_sum) is SiteCode.OK
    assert table.code("a", RoundStep.UNMASK, table.unmask("a", "b", "c"), **of_sum) is SiteCode.ANSWERED


@pytest.mark.parametrize("number", [2, 3])
def test_keys_of_another_sum_or_of_another_attempt(table: LaterTable, number: int) -> None:
    """They are signed for one attempt of one sum: a server cannot bring them back."""
    temperature = table.question("temperature")
    old = {site: table.ask(site, RoundStep.KEYS, *temperature, round=2, attempt=2).data("keys") for site in FOUR}
    table.attempt = 2
    if number == 3:
        table.sum(2, *temperature)
    question = temperature if number == 2 else table.question("gradient", model())
    of_sum: Any = {"round": number, "attempt": 9}
    fresh = {site: table.ask(site, RoundStep.KEYS, *question, **of_sum).data("keys") for site in FOUR}
    mixed = by_site("keys", {**fresh, "b": old["b"]})
    assert table.code("a", RoundStep.SHARE, mixed, **of_sum) is SiteCode.SECURE_SUM
    assert table.code("a", RoundStep.SHARE, by_site("keys", fresh), **of_sum) is SiteCode.OK


def test_a_step_of_another_sum(table: LaterTable) -> None:
    table.sum(2, *table.question("temperature"), until=RoundStep.MASK)
    for number in (1, 3):
        assert table.code("a", RoundStep.UNMASK, table.unmask(*FOUR), round=number) is SiteCode.ORDER


def test_a_sum_that_is_not_the_next(table: LaterTable) -> None:
    gradient, temperature = table.question("gradient", model()), table.question("temperature")
    assert table.keys("a", 2, *gradient) is SiteCode.ORDER  # no temperature yet
    assert table.keys("a", 3, *temperature) is SiteCode.ORDER
    table.sum(2, *temperature)
    assert table.keys("a", 4, *gradient) is SiteCode.ORDER
    assert table.keys("a", 3, *temperature) is SiteCode.ORDER  # a second one
    assert table.keys("a", 3, *table.question("rows")) is SiteCode.ORDER
    assert table.keys("a", 3, *table.question("penalty", model(), model(2.0))) is SiteCode.ORDER
    assert table.keys("a", 3, *gradient, attempt=1) is SiteCode.OK
    again = [table.ask("a", RoundStep.KEYS, *gradient, round=3, attempt=1).body for _ in range(2)]
    assert again[0] == again[1] != {}
    assert table.keys("a", 3, *table.question("gradient", model(3.0)), attempt=1) is SiteCode.ANSWERED
    assert table.keys("a", 4, *table.question("gradient", model(2.0))) is SiteCode.ORDER  # the third is not masked


def test_no_more_gradients_than_agreed(tmp_path: Path) -> None:
    table = LaterTable(tmp_path, gradient_rounds=2)
    table.statistics()
    table.sum(2, *table.question("temperature"))
    for number in (3, 4):
        table.sum(number, *table.question("gradient", model(float(number))))
    assert table.keys("a", 5, *table.question("gradient", model(5.0))) is SiteCode.ORDER


def test_another_sum_of_statistics(table: LaterTable) -> None:
    body, arrays = table.question("temperature")
    other = table.total + np.uint64(1)
    assert table.keys("a", 2, {**body, "sum": "0" * 64}, arrays) is SiteCode.MALFORMED
    assert table.keys("a", 2, body, {"total": table.total[:-1]}) is SiteCode.MALFORMED
    assert table.keys("a", 2, body) is SiteCode.TOTAL  # none came
    table.sum(2, body, arrays)
    assert table.keys("a", 3, {**body, "ask": "gradient", "sum": digest_of(other)}) is SiteCode.TOTAL
    gradient, weights = table.question("gradient", model())
    assert table.keys("a", 3, {**gradient, "sum": digest_of(other)}, {**weights, "total": other}) is SiteCode.TOTAL
    assert table.code("a", RoundStep.PERSONALIZE, {"sites": list(FOUR), "beta": 1.0, "sum": "0" * 64}) is SiteCode.TOTAL


def test_a_total_that_does_not_hold_the_sites_rows_is_the_only_one(table: LaterTable) -> None:
    """Whether a total holds the rows is a bit about them, and there is one such bit for an agreement."""
    lacking = to_vector(sum_of(("b",), table.trial.agreement)) // np.uint64(4)
    body, _ = table.question("temperature")
    assert table.keys("a", 2, {**body, "sum": digest_of(lacking)}, {"total": lacking}) is SiteCode.TOTAL
    assert table.keys("a", 2, *table.question("temperature")) is SiteCode.TOTAL
    table.begin(b"t" * 32)
    assert table.code("a", RoundStep.HELLO) is SiteCode.SECOND_SUM


def test_the_same_weights_in_two_sums(table: LaterTable) -> None:
    table.sum(2, *table.question("temperature"))
    table.sum(3, *table.question("gradient", model()))
    assert table.keys("a", 4, *table.question("gradient", model())) is SiteCode.WEIGHTS
    assert table.keys("a", 4, *table.question("gradient", model(2.0))) is SiteCode.OK


def test_many_weights_in_one_sum(table: LaterTable) -> None:
    """Whether a loss is finite is a bit about a site's own rows."""
    table.sum(2, *table.question("temperature"))
    huge = [table.keys("a", 3, *table.question("gradient", model(2.0 ** (30 + i)))) for i in range(7)]
    assert huge == [SiteCode.LOSS] * 6 + [SiteCode.WEIGHTS]
    assert table.keys("a", 3, *table.question("gradient", model())) is SiteCode.WEIGHTS


@pytest.mark.parametrize("damage", ["short", "kind", "large", "bits"])
def test_weights_that_are_none(table: LaterTable, damage: str) -> None:
    table.sum(2, *table.question("temperature"))
    body, arrays = table.question("gradient", model())
    steps = arrays["models"]
    if damage == "bits":
        body["bits-0"] = 5000
    else:
        arrays["models"] = {"short": steps[:-1], "kind": steps.astype(np.uint64), "large": steps * 2**6}[damage]
    assert table.keys("a", 3, body, arrays) is SiteCode.MALFORMED


def test_penalties_after_weights_that_nobody_was_asked_about(table: LaterTable) -> None:
    table.sum(2, *table.question("temperature"))
    sums = [table.sum(number, *table.question("gradient", model(float(number)))) for number in (3, 4)]
    body, arrays = table.question("penalty", model(3.0), model(7.0))
    arrays["sums"] = np.concatenate(sums)  # type: ignore[arg-type]
    body["temperature"] = 2.0
    assert table.keys("a", 5, body, arrays) is SiteCode.WEIGHTS
    body, more = table.question("penalty", model(3.0), model(4.0))
    assert table.keys("a", 5, {**body, "temperature": 2.0}, {**arrays, **more}) is SiteCode.OK


def test_a_sum_that_a_site_has_left_is_refused_in_each_step(table: LaterTable) -> None:
    table.sum(2, *table.question("temperature"))
    gradient = table.question("gradient", model())
    with pytest.raises(AssertionError, match="d was in the sum before"):
        table.sum(3, *gradient, sites=FOUR[:3])  # left before the keys
    assert "share of sum 3: refused (leaver)" in table.trial.log("a")
    table.sum(3, *gradient, until=RoundStep.MASK)  # all sent their vectors, and the server names one of them gone
    three, of_sum = FOUR[:3], {"round": 3, "attempt": table.attempt}
    assert table.code("a", RoundStep.AGREE, {"survivors": list(three)}, **of_sum) is SiteCode.LEAVER
    assert table.code("a", RoundStep.UNMASK, table.unmask(*three), **of_sum) is SiteCode.LEAVER
    assert table.code("a", RoundStep.UNMASK, table.unmask(*FOUR), **of_sum) is SiteCode.OK


def test_a_head_without_later_sums(tmp_path: Path) -> None:
    table = Table(tmp_path, **ONE_SUM)
    table.until(RoundStep.MASK)
    for ask in ("gradient", "beta", "statistics", "moments"):
        body = {"ask": ask, "sum": "0" * 64, "sites": list(FOUR)}
        assert table.code("a", RoundStep.KEYS, body, round=2, attempt=2) is SiteCode.ORDER


@pytest.fixture
def three(tmp_path: Path) -> ThreeSums:
    return ThreeSums(tmp_path)


def test_three_sums_by_hand(three: ThreeSums) -> None:
    from fedhip.simulation.beta import score_betas, scoring_betas
    from fedhip.simulation.federation import Federation

    agreement = three.trial.agreement
    three.survey()
    found = three.sum(2, *three.for_statistics())
    np.testing.assert_array_equal(found, three.total)
    told = three.sum(3, *three.for_beta())
    federation = Federation(sum_of(FOUR, agreement), 0.0, encoding(agreement))
    path = federation.beta_path(scoring_betas(federation.total))
    expected = sum(score_betas(federation, path, client, "loo").soft for client in clients(FOUR))
    assert expected.shape == (6, 8)  # type: ignore[union-attr]
    torch.testing.assert_close(losses_of(told).reshape(6, 8), expected, rtol=0.0, atol=4 * 2.0**-33)  # type: ignore[arg-type]
    assert three.code("a", RoundStep.PERSONALIZE, three.last()) is SiteCode.OK


class KilledError(BaseException):
    """The process that answers is no more."""


def test_a_site_that_is_killed_over_the_keys_of_a_later_sum_answers_the_same_question(
    three: ThreeSums, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has left yet; it knows that the sum is under way, and takes no other question for it."""
    three.survey()
    question, arrays = three.for_statistics()

    def keys(**more: Any) -> SiteCode:
        body = {**question, **more}
        return three.code("a", RoundStep.KEYS, body, arrays, round=2, attempt=2)

    def killed(*_: Any) -> Vector:
        raise KilledError

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(Site, "_vector", killed)
            with pytest.raises(KilledError):
                keys()
    assert three.code("a", RoundStep.SHARE, by_site("keys", {}), round=2, attempt=2) is SiteCode.ORDER
    assert keys(more="words") is SiteCode.ANSWERED
    assert keys() is SiteCode.OK
    assert keys() is SiteCode.OK  # the very same answer
    assert keys(more="words") is SiteCode.ANSWERED
    three.attempt = 2
    three.sum(2, question, arrays)  # and in another attempt, with all others


def test_statistics_that_are_not_their_turn(three: ThreeSums) -> None:
    table = three
    body, arrays = table.for_statistics()
    table.until(RoundStep.HELLO)
    assert table.keys("a", 2, body, arrays) is SiteCode.ORDER  # nobody has said what columns are like
    table.begin(b"t" * 32)
    table.survey()
    for ask in ("moments", "beta", "prior", "gradient", "temperature", "rows"):
        more = {"total": table.total, "moments": table.moments}
        assert table.keys("a", 2, {**body, "ask": ask, "sites": list(FOUR)}, more) is SiteCode.ORDER
    table.sum(2, body, arrays)
    for ask in ("moments", "statistics"):  # a second one
        assert table.keys("a", 3, {**body, "ask": ask}, arrays) is SiteCode.ORDER


def test_a_first_sum_that_is_none(three: ThreeSums) -> None:
    three.survey()
    body, arrays = three.for_statistics()
    assert three.keys("a", 2, body) is SiteCode.TOTAL  # none came
    assert three.keys("a", 2, body, {"moments": three.moments[1:]}) is SiteCode.MALFORMED
    assert three.keys("a", 2, {**body, "sum": "0" * 64}, arrays) is SiteCode.MALFORMED
    for place, number in ((-1, 0), (-1, 1 << 40), (0, 1 << 20), ((5 * 4 + 1) * WIDTH, 1 << 50)):  # those of no rows
        wrong = three.moments.copy()
        wrong[place] = number
        assert three.keys("a", 2, *_about(body, wrong)) is SiteCode.TOTAL
    assert "the sum 'moments' that came is that of no rows" in three.trial.log("a")
    assert "Traceback" not in three.trial.log("a")
    assert three.keys("a", 2, body, arrays) is SiteCode.OK  # they were no questions at all


def _about(body: dict[str, Any], moments: Vector) -> tuple[dict[str, Any], dict[str, Any]]:
    return {**body, "sum": digest_of(moments)}, {"moments": moments}


def test_one_first_sum_for_an_agreement(three: ThreeSums) -> None:
    """A server that makes units up could ask again and again where values begin to be rounded away."""
    three.survey()
    body, arrays = three.for_statistics()
    other = survey_of(("a", "b", "c"))
    assert three.keys("a", 2, *_about(body, other)) is SiteCode.OK
    assert three.keys("a", 2, body, arrays) is SiteCode.TOTAL
    assert "another sum 'moments' than the one that came first" in three.trial.log("a")
    three.begin(b"t" * 32)  # nor does a new session help
    assert three.code("a", RoundStep.HELLO) is SiteCode.SECOND_SUM


def test_columns_for_which_there_are_no_units(three: ThreeSums) -> None:
    """The server would have stopped; of one that goes on the site refuses it in one line."""
    three.survey()
    wild = survey_of(FOUR, {"b": 1e12})
    assert three.keys("a", 2, *_about(three.for_statistics()[0], wild)) is SiteCode.DATA
    line = three.trial.log("a").splitlines()[-1]
    assert "keys of sum 2: refused (data): column 0 holds a value of about 1e+12" in line


def test_beta_out_of_turn_and_twice(three: ThreeSums, tmp_path: Path) -> None:
    question = three.for_beta()
    three.survey()
    assert three.keys("a", 2, *question) is SiteCode.ORDER  # before the statistics
    three.sum(2, *three.for_statistics())
    assert three.keys("a", 4, *question) is SiteCode.ORDER
    three.sum(3, *question)
    assert three.keys("a", 3, *question) is SiteCode.ANSWERED
    assert three.keys("a", 4, *question) is SiteCode.ORDER
    for settings in ({"beta": "gcv"}, {"beta": 1.0}, {"head": "lda"}):  # which do not choose it by rows
        other = ThreeSums(tmp_path / str(settings), **settings)
        other.until_beta()
        assert other.keys("a", 3, *other.for_beta()) is SiteCode.ORDER


def test_beta_before_priors(tmp_path: Path) -> None:
    table = ThreeSums(tmp_path, prior="client")
    table.until_beta()
    body = {"ask": "prior", "sum": table.digest, "beta": 1.0}
    assert table.keys("a", 3, body, {"total": table.total}) is SiteCode.ORDER
    table.sum(3, *table.for_beta())
    assert table.keys("a", 4, body) is SiteCode.OK


def test_another_sum_of_statistics_for_beta(three: ThreeSums) -> None:
    three.until_beta()
    body, arrays = three.for_beta()
    other = three.total + np.uint64(1)
    assert three.keys("a", 3, {**body, "sum": digest_of(other)}, arrays) is SiteCode.MALFORMED
    assert three.keys("a", 3, body, {"total": three.total[1:]}) is SiteCode.MALFORMED
    assert three.keys("a", 3, body) is SiteCode.TOTAL  # none came
    assert three.keys("a", 3, body, arrays) is SiteCode.OK
    assert three.keys("a", 3, {**body, "sum": digest_of(other)}, {"total": other}) is SiteCode.TOTAL
    lacking = to_vector(sum_of(("b",), three.trial.agreement, FOUR)) // np.uint64(4)
    assert three.keys("b", 3, {**body, "sum": digest_of(lacking)}, {"total": lacking}) is SiteCode.TOTAL


@pytest.mark.parametrize(
    "sites",
    [["a"], ["a", *(f"a{i}" for i in range(40))], ["b", "c", "d"], ["a", "b", "c"], [*FOUR, "e"], []],
    ids=["one", "made-up", "others", "fewer", "more", "nobody"],
)
@pytest.mark.sampled(3)
def test_a_list_of_those_who_choose_beta_is_that_of_the_sum_before(three: ThreeSums, sites: list[str]) -> None:
    """Of many sites some score: by a list that the server makes up, a single one would, and the sum be its own."""
    three.until_beta()
    three.trial.policy("a", "allow_leavers = true")  # whatever it allows
    assert three.keys("a", 3, *three.for_beta(sites=sites)) is SiteCode.COHORT
    assert three.keys("a", 3, *three.for_beta(sites="abcd")) is SiteCode.MALFORMED
    assert not (three.trial.site_folder("a") / "state" / "vector.bin").exists()
    assert three.keys("a", 3, *three.for_beta()) is SiteCode.OK


@pytest.mark.parametrize("name", ["beta", "beta-0", "beta-4"])
@pytest.mark.parametrize(
    ("beta", "code"),
    [
        (float("nan"), SiteCode.MALFORMED),
        (float("inf"), SiteCode.MALFORMED),
        ("auto", SiteCode.MALFORMED),
        (1, SiteCode.MALFORMED),
        (None, SiteCode.MALFORMED),
        (-1.0, SiteCode.TOTAL),
    ],
)
@pytest.mark.sampled(3)
def test_a_beta_at_last_that_is_none(three: ThreeSums, name: str, beta: Any, code: SiteCode) -> None:
    three.until_beta()
    three.sum(3, *three.for_beta())
    body = three.last(**{name: beta})
    if beta is None:
        del body[name]
    assert three.code("a", RoundStep.PERSONALIZE, body) is code
    assert not (three.trial.site_folder("a") / "result").exists()
    assert three.code("a", RoundStep.PERSONALIZE, three.last()) is SiteCode.OK  # it was no question at all


def test_a_model_before_its_turn(three: ThreeSums) -> None:
    arrays = {"total": three.total}
    three.survey()
    assert three.code("a", RoundStep.PERSONALIZE, three.last(), arrays) is SiteCode.TOTAL
    three.sum(2, *three.for_statistics())
    assert three.code("a", RoundStep.PERSONALIZE, three.last(), arrays) is SiteCode.TOTAL
    assert not (three.trial.site_folder("a") / "result").exists()


def test_what_lies_on_the_disk_between_three_sums(three: ThreeSums) -> None:
    state = three.trial.site_folder("a") / "state"
    usual = {"lock", "session.bin", "site.log", "finished.json", "sums.head"}
    three.until_beta()
    assert {path.name for path in state.iterdir()} == {*usual, "moments.bin"}
    three.sum(3, *three.for_beta())
    assert {path.name for path in state.iterdir()} == {*usual, "moments.bin", "total.bin"}
    for path in (state, *state.iterdir()):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    (state / "moments.bin").write_bytes(b"12345678")
    assert three.code("a", RoundStep.PERSONALIZE, three.last()) is SiteCode.FOLDER
    assert "is no longer there, or damaged" in three.trial.log("a")
    assert three.code("b", RoundStep.PERSONALIZE, three.last()) is SiteCode.OK
    assert {path.name for path in (three.trial.site_folder("b") / "state").iterdir()} == {*usual, "sum.json"}


@pytest.fixture
def ridges(tmp_path: Path) -> LaterTable:
    """Of a ridge with priors, which are asked for after the statistics."""
    table = LaterTable(tmp_path, head="ridge", gradient_rounds=None, prior="client", beta=1.0)
    table.statistics()
    return table


def test_priors_that_are_not_their_turn(table: LaterTable, tmp_path: Path) -> None:
    for ask in ("scale", "prior"):  # not agreed on
        assert table.keys("a", 2, {"ask": str(ask), "sum": table.digest}, {"total": table.total}) is SiteCode.ORDER
    lda = LaterTable(tmp_path / "lda", head="lda", gradient_rounds=None, prior="client")
    lda.statistics()
    body = {"ask": "prior", "sum": lda.digest, "scale": 1.0, "temperature": 2.0}
    for early in ("scale", "prior"):  # before the temperature
        assert lda.keys("a", 2, {**body, "ask": early}, {"total": lda.total}) is SiteCode.ORDER
    lda.sum(2, {**body, "ask": "temperature"}, {"total": lda.total})
    assert lda.keys("a", 3, body) is SiteCode.ORDER  # before the scale
    lda.sum(3, {**body, "ask": "scale"})
    for again in ("scale", "temperature"):  # a second one
        assert lda.keys("a", 4, {**body, "ask": again}) is SiteCode.ORDER
    assert lda.keys("a", 4, {**body, "temperature": 3.0}) is SiteCode.WEIGHTS
    assert lda.keys("a", 4, {**body, "scale": 0.0}) is SiteCode.MALFORMED
    assert lda.keys("a", 4, body) is SiteCode.OK


def test_one_head_for_all_priors(ridges: LaterTable) -> None:
    body, arrays = {"ask": "prior", "sum": ridges.digest, "beta": 1.0}, {"total": ridges.total}
    assert ridges.keys("a", 2, body, arrays) is SiteCode.OK
    assert ridges.keys("a", 2, {**body, "beta": 2.0}, arrays) is SiteCode.WEIGHTS
    assert ridges.keys("b", 2, {**body, "beta": 2.0}, arrays) is SiteCode.TOTAL  # agreed on another


def test_losses_at_last_that_are_none(ridges: LaterTable) -> None:
    pooled = ridges.sum(2, {"ask": "prior", "sum": ridges.digest, "beta": 1.0}, {"total": ridges.total})
    body = {"sites": list(FOUR), "beta": 1.0, "sum": ridges.digest}
    assert ridges.code("a", RoundStep.PERSONALIZE, body, {"priors": pooled[:-1]}) is SiteCode.MALFORMED  # type: ignore[index]
    assert ridges.code("b", RoundStep.PERSONALIZE, body) is SiteCode.MALFORMED
    assert ridges.code("c", RoundStep.PERSONALIZE, body, {"priors": pooled}) is SiteCode.OK


def test_what_two_sums_tell_of_a_leaver_and_why_sites_refuse(table: LaterTable) -> None:
    """With consent to leavers a server that names a site gone has its class sums, nearly: here it does so."""
    for site in FOUR:
        table.trial.policy(site, "allow_leavers = true")
    table.sum(2, *table.question("temperature"))
    zero = GridModel(torch.zeros((WIDTH + 1, len(CLASSES)), dtype=torch.int32), 23)
    nearly = replace(zero, steps=zero.steps + torch.eye(WIDTH + 1, len(CLASSES), dtype=torch.int32))
    with_c = table.sum(3, *table.question("gradient", zero))
    without = table.sum(4, *table.question("gradient", nearly), sites=("a", "b", "d"))
    fit = fit_of(table.total, LAYOUT, table.trial.bits)
    told = term_of(with_c, LAYOUT, fit.rows).slopes - term_of(without, LAYOUT, fit.rows).slopes  # type: ignore[arg-type]
    (c,) = clients(["c"])
    X = fit.standardization.features(torch.tensor(c.train[0]))
    Y = torch.nn.functional.one_hot(torch.tensor(c.train[1]), len(CLASSES)).double()
    torch.testing.assert_close(told, X.mT @ (0.25 - Y), rtol=0.0, atol=1e-3)


def test_what_made_up_weights_tell_of_a_row_that_lies_far_out(table: LaterTable) -> None:
    """Weights that tell one side of a threshold from the other: the class sums of that side, here of a single row."""
    fit = fit_of(table.total, LAYOUT, table.trial.bits)
    X = fit.standardization.features(torch.cat([torch.tensor(c.train[0]) for c in clients(FOUR)]))
    largest, second = X[:, 0].topk(2).values
    weights = torch.zeros((WIDTH + 1, len(CLASSES)), dtype=torch.float64)
    weights[0, 0], weights[-1, 0] = 1000.0, -1000.0 * (largest + second) / 2
    table.sum(2, *table.question("temperature"))
    found = table.sum(3, *table.question("gradient", GridModel.of(weights)))
    row = term_of(found, LAYOUT, fit.rows).slopes[:, 0] + fit.statistics.cross[:, 0]  # type: ignore[arg-type]
    torch.testing.assert_close(row, X[X[:, 0].argmax()], rtol=0.0, atol=1e-3)
