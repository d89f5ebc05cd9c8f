"""What a site refuses in the sums after the statistics', from a server that asks what it likes."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedhip.core.logistic.sums import GridModel
from fedhip.federation.codes import SiteCode
from fedhip.federation.secure_sum import Collector
from fedhip.federation.sums.later import Ask, fit_of, losses_of, model_arrays, model_body, term_of
from fedhip.federation.sums.vector import Layout, Vector, digest_of, to_vector
from fedhip.federation.transport.wire import Letter, Step, by_site, context_of
from tests.federation.samples import CLASSES, FOUR, ONE_SUM, WIDTH, clients, encoding, sum_of, survey_of
from tests.federation.table import Table

LAYOUT = Layout(WIDTH, len(CLASSES))


class LaterTable(Table):
    """Four sites whose statistics were summed; later sums of the logistic head are asked for by hand."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        usual = {"head": "logistic", "gradient_rounds": 3, "columns": "plain", "quorum": 3, "threshold": 3}
        settings = {**usual, **settings}
        super().__init__(tmp_path, **settings)
        self.total = to_vector(sum_of(FOUR, self.trial.agreement))
        self.digest = digest_of(self.total)
        self.attempt = 1
        self.about: str | None = None

    def statistics(self) -> None:
        self.until(Step.MASK)
        for site in FOUR:
            self._ok(site, Step.UNMASK, self.unmask(*FOUR))

    def question(self, ask: Ask | str, *models: GridModel) -> tuple[dict[str, Any], dict[str, Any]]:
        body = {"ask": str(ask), "sum": self.digest, **model_body(models)}
        return body, {"total": self.total} if ask == Ask.TEMPERATURE else dict(model_arrays(models)) if models else {}

    def told(self, ask: str) -> tuple[str | None, str | None]:
        """The digests of the sums that the sites have by then: the first, and that of the statistics."""
        return self.about, None if ask == Ask.STATISTICS else self.digest

    def keys(self, site: str, number: int, *question: Any, attempt: int | None = None) -> SiteCode:
        """What a site says to the first question of a sum."""
        self.attempt += 1
        return self.code(site, Step.KEYS, *question, round=number, attempt=attempt or self.attempt)

    def sum(
        self, number: int, *question: Any, sites: Sequence[str] = FOUR, until: Step = Step.UNMASK
    ) -> Vector | Collector:
        """A whole sum of these sites, or all of it until a step."""
        self.attempt += 1
        of_sum: Any = {"round": number, "attempt": self.attempt}
        envelope = replace(self.envelope, step=Step.KEYS, **of_sum)
        context = context_of(Letter(envelope, *question), *self.told(question[0]["ask"]))
        collector = Collector(self.roster.keys, envelope.sum_session, context, self.trial.agreement.threshold)

        def ok(site: str, step: Step, *rest: Any) -> Any:
            answer = self.ask(site, step, *rest, **of_sum)
            assert answer.code is SiteCode.OK, self.trial.log(site)
            return answer

        for site in sites:
            collector.keys(site, ok(site, Step.KEYS, *question).data("keys"))
        cohort = by_site("keys", collector.cohort())
        for site in sites:
            collector.shares(site, ok(site, Step.SHARE, cohort).mapping("shares"))
        for site in sites:
            dealt = {"secure": True, **by_site("shares", collector.dealt_to(site))}
            answer = ok(site, Step.MASK, dealt)
            collector.add(site, answer.array("vector"), answer.data("signature"))
        if until is Step.MASK:
            return collector
        for site in collector.survivors():
            collector.unmask(site, ok(site, Step.UNMASK, self.unmask(*sites)).data("shares"))
        return collector.result()


def model(scale: float = 1.0) -> GridModel:
    weights = torch.from_numpy(np.random.default_rng(3).normal(size=(WIDTH + 1, len(CLASSES))))
    return GridModel.of(scale * weights)


@pytest.fixture
def table(tmp_path: Path) -> LaterTable:
    table = LaterTable(tmp_path)
    table.statistics()
    return table


def test_sums_by_hand(table: LaterTable) -> None:
    from fedhip.core.exact.fixedpoint import round_features
    from fedhip.core.logistic.sums import logistic_term

    table.sum(2, *table.question(Ask.TEMPERATURE))
    found = table.sum(3, *table.question(Ask.GRADIENT, model()))
    fit = fit_of(table.total, LAYOUT, table.trial.bits)
    terms = (
        logistic_term(round_features(torch.tensor(c.train[0]), table.trial.bits), c.train[1], model(),
                      fit.standardization, rows=fit.rows)
        for c in clients(FOUR)
    )  # fmt: skip
    assert term_of(found, LAYOUT, fit.rows) == sum(terms)  # type: ignore[arg-type]


def test_a_second_unmasking_of_a_sum(table: LaterTable) -> None:
    question = table.question(Ask.GRADIENT, model())
    table.sum(2, *table.question(Ask.TEMPERATURE))
    table.sum(3, *question)
    assert table.keys("a", 3, *question) is SiteCode.ANSWERED
    of_sum: Any = {"round": 3, "attempt": table.attempt}
    # The very same question gets the very same answer; no other list of survivors gets any.
    assert table.code("a", Step.UNMASK, table.unmask(*FOUR), **of_sum) is SiteCode.OK
    assert table.code("a", Step.UNMASK, table.unmask("a", "b", "c"), **of_sum) is SiteCode.ANSWERED


@pytest.mark.parametrize("number", [2, 3])
def test_keys_of_another_sum_or_of_another_attempt(table: LaterTable, number: int) -> None:
    """They are signed for one attempt of one sum: a server cannot bring them back."""
    temperature = table.question(Ask.TEMPERATURE)
    old = {site: table.ask(site, Step.KEYS, *temperature, round=2, attempt=2).data("keys") for site in FOUR}
    table.attempt = 2
    if number == 3:
        table.sum(2, *temperature)
    question = temperature if number == 2 else table.question(Ask.GRADIENT, model())
    of_sum: Any = {"round": number, "attempt": 9}
    fresh = {site: table.ask(site, Step.KEYS, *question, **of_sum).data("keys") for site in FOUR}
    mixed = by_site("keys", {**fresh, "b": old["b"]})
    assert table.code("a", Step.SHARE, mixed, **of_sum) is SiteCode.SECURE_SUM
    assert table.code("a", Step.SHARE, by_site("keys", fresh), **of_sum) is SiteCode.OK


def test_a_step_of_another_sum(table: LaterTable) -> None:
    table.sum(2, *table.question(Ask.TEMPERATURE), until=Step.MASK)
    for number in (1, 3):
        assert table.code("a", Step.UNMASK, table.unmask(*FOUR), round=number) is SiteCode.ORDER


def test_a_sum_that_is_not_the_next(table: LaterTable) -> None:
    gradient, temperature = table.question(Ask.GRADIENT, model()), table.question(Ask.TEMPERATURE)
    assert table.keys("a", 2, *gradient) is SiteCode.ORDER  # no temperature yet
    assert table.keys("a", 3, *temperature) is SiteCode.ORDER
    table.sum(2, *temperature)
    assert table.keys("a", 4, *gradient) is SiteCode.ORDER
    assert table.keys("a", 3, *temperature) is SiteCode.ORDER  # a second one
    assert table.keys("a", 3, *table.question("rows")) is SiteCode.ORDER
    assert table.keys("a", 3, *table.question(Ask.PENALTY, model(), model(2.0))) is SiteCode.ORDER
    assert table.keys("a", 3, *gradient, attempt=1) is SiteCode.OK
    assert table.keys("a", 3, *gradient, attempt=1) is SiteCode.ANSWERED
    assert table.keys("a", 4, *table.question(Ask.GRADIENT, model(2.0))) is SiteCode.ORDER  # the third is not masked


def test_no_more_gradients_than_agreed(tmp_path: Path) -> None:
    table = LaterTable(tmp_path, gradient_rounds=2)
    table.statistics()
    table.sum(2, *table.question(Ask.TEMPERATURE))
    for number in (3, 4):
        table.sum(number, *table.question(Ask.GRADIENT, model(float(number))))
    assert table.keys("a", 5, *table.question(Ask.GRADIENT, model(5.0))) is SiteCode.ORDER


def test_another_sum_of_statistics(table: LaterTable) -> None:
    body, arrays = table.question(Ask.TEMPERATURE)
    other = table.total + np.uint64(1)
    assert table.keys("a", 2, {**body, "sum": "0" * 64}, arrays) is SiteCode.MALFORMED
    assert table.keys("a", 2, body, {"total": table.total[:-1]}) is SiteCode.MALFORMED
    assert table.keys("a", 2, body) is SiteCode.TOTAL  # none came
    table.sum(2, body, arrays)
    assert table.keys("a", 3, {**body, "ask": "gradient", "sum": digest_of(other)}) is SiteCode.TOTAL
    gradient, weights = table.question(Ask.GRADIENT, model())
    assert table.keys("a", 3, {**gradient, "sum": digest_of(other)}, {**weights, "total": other}) is SiteCode.TOTAL
    assert table.code("a", Step.PERSONALIZE, {"sites": list(FOUR), "beta": 1.0, "sum": "0" * 64}) is SiteCode.TOTAL


def test_a_total_that_does_not_hold_the_sites_rows_is_the_only_one(table: LaterTable) -> None:
    """Whether a total holds the rows is a bit about them, and there is one such bit for an agreement."""
    lacking = to_vector(sum_of(("b",), table.trial.agreement)) // np.uint64(4)
    body, _ = table.question(Ask.TEMPERATURE)
    assert table.keys("a", 2, {**body, "sum": digest_of(lacking)}, {"total": lacking}) is SiteCode.TOTAL
    assert table.keys("a", 2, *table.question(Ask.TEMPERATURE)) is SiteCode.TOTAL
    table.begin(b"t" * 32)
    assert table.code("a", Step.HELLO) is SiteCode.SECOND_SUM


def test_the_same_weights_in_two_sums(table: LaterTable) -> None:
    table.sum(2, *table.question(Ask.TEMPERATURE))
    table.sum(3, *table.question(Ask.GRADIENT, model()))
    assert table.keys("a", 4, *table.question(Ask.GRADIENT, model())) is SiteCode.WEIGHTS
    assert table.keys("a", 4, *table.question(Ask.GRADIENT, model(2.0))) is SiteCode.OK


def test_many_weights_in_one_sum(table: LaterTable) -> None:
    """Whether a loss is finite is a bit about a site's own rows."""
    table.sum(2, *table.question(Ask.TEMPERATURE))
    huge = [table.keys("a", 3, *table.question(Ask.GRADIENT, model(2.0 ** (30 + i)))) for i in range(7)]
    assert huge == [SiteCode.LOSS] * 6 + [SiteCode.WEIGHTS]
    assert table.keys("a", 3, *table.question(Ask.GRADIENT, model())) is SiteCode.WEIGHTS


@pytest.mark.parametrize("damage", ["short", "kind", "large", "bits"])
def test_weights_that_are_none(table: LaterTable, damage: str) -> None:
    table.sum(2, *table.question(Ask.TEMPERATURE))
    body, arrays = table.question(Ask.GRADIENT, model())
    steps = arrays["models"]
    if damage == "bits":
        body["bits-0"] = 5000
    else:
        arrays["models"] = {"short": steps[:-1], "kind": steps.astype(np.uint64), "large": steps * 2**6}[damage]
    assert table.keys("a", 3, body, arrays) is SiteCode.MALFORMED


def test_penalties_after_weights_that_nobody_was_asked_about(table: LaterTable) -> None:
    table.sum(2, *table.question(Ask.TEMPERATURE))
    sums = [table.sum(number, *table.question(Ask.GRADIENT, model(float(number)))) for number in (3, 4)]
    body, arrays = table.question(Ask.PENALTY, model(3.0), model(7.0))
    arrays["sums"] = np.concatenate(sums)  # type: ignore[arg-type]
    body["temperature"] = 2.0
    assert table.keys("a", 5, body, arrays) is SiteCode.WEIGHTS
    body, more = table.question(Ask.PENALTY, model(3.0), model(4.0))
    assert table.keys("a", 5, {**body, "temperature": 2.0}, {**arrays, **more}) is SiteCode.OK


def test_a_sum_that_a_site_has_left_is_refused_in_each_step(table: LaterTable) -> None:
    table.sum(2, *table.question(Ask.TEMPERATURE))
    gradient = table.question(Ask.GRADIENT, model())
    with pytest.raises(AssertionError, match="d was in the sum before"):
        table.sum(3, *gradient, sites=FOUR[:3])  # left before the keys
    assert "share of sum 3: refused (leaver)" in table.trial.log("a")
    table.sum(3, *gradient, until=Step.MASK)  # all sent their vectors, and the server names one of them gone
    three, of_sum = FOUR[:3], {"round": 3, "attempt": table.attempt}
    assert table.code("a", Step.AGREE, {"survivors": list(three)}, **of_sum) is SiteCode.LEAVER
    assert table.code("a", Step.UNMASK, table.unmask(*three), **of_sum) is SiteCode.LEAVER
    assert table.code("a", Step.UNMASK, table.unmask(*FOUR), **of_sum) is SiteCode.OK


def test_a_head_without_later_sums(tmp_path: Path) -> None:
    table = Table(tmp_path, **ONE_SUM)
    table.until(Step.MASK)
    for ask in ("gradient", "beta", "statistics", "moments"):
        body = {"ask": ask, "sum": "0" * 64, "sites": list(FOUR)}
        assert table.code("a", Step.KEYS, body, round=2, attempt=2) is SiteCode.ORDER


class ThreeSums(LaterTable):
    """Four sites that are asked what their columns are like, for their statistics, and for what β is chosen by."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        super().__init__(tmp_path, **{"head": "ridge", "gradient_rounds": None, "columns": "sum", **settings})
        self.moments = survey_of(FOUR)
        self.survey = self.statistics  # the first sum by hand, whatever it is of
        self.about = digest_of(self.moments)

    def for_statistics(self, **other: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"ask": "statistics", "sum": self.about, **other}, {"moments": self.moments}

    def for_beta(self, **other: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        body = {"ask": "beta", "sum": self.digest, "sites": list(FOUR), **other}
        return body, {"total": self.total}

    def last(self, **other: Any) -> dict[str, Any]:
        folds = {f"beta-{fold}": 0.5 for fold in range(5)}
        return {"sites": list(FOUR), "beta": 1.0, "sum": self.digest, **folds, **other}

    def until_beta(self) -> None:
        self.survey()
        self.sum(2, *self.for_statistics())


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
    assert three.code("a", Step.PERSONALIZE, three.last()) is SiteCode.OK


def test_statistics_that_are_not_their_turn(three: ThreeSums) -> None:
    table = three
    body, arrays = table.for_statistics()
    table.until(Step.HELLO)
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
    assert three.keys("a", 2, body) is SiteCode.MALFORMED
    assert three.keys("a", 2, body, {"moments": three.moments[1:]}) is SiteCode.MALFORMED
    assert three.keys("a", 2, {**body, "sum": "0" * 64}, arrays) is SiteCode.MALFORMED
    for place, number in ((-1, 0), (-1, 1 << 40), (0, 1 << 20), ((5 * 4 + 1) * WIDTH, 1 << 50)):  # those of no rows
        wrong = three.moments.copy()
        wrong[place] = number
        assert three.keys("a", 2, *_about(body, wrong)) is SiteCode.TOTAL
    assert "the first sum that came is that of no rows" in three.trial.log("a")
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
    assert "other moments than those that came first" in three.trial.log("a")
    three.begin(b"t" * 32)  # nor does a new session help
    assert three.code("a", Step.HELLO) is SiteCode.SECOND_SUM


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
def test_a_beta_at_last_that_is_none(three: ThreeSums, name: str, beta: Any, code: SiteCode) -> None:
    three.until_beta()
    three.sum(3, *three.for_beta())
    body = three.last(**{name: beta})
    if beta is None:
        del body[name]
    assert three.code("a", Step.PERSONALIZE, body) is code
    assert not (three.trial.site_folder("a") / "result").exists()
    assert three.code("a", Step.PERSONALIZE, three.last()) is SiteCode.OK  # it was no question at all


def test_a_model_before_its_turn(three: ThreeSums) -> None:
    arrays = {"total": three.total}
    three.survey()
    assert three.code("a", Step.PERSONALIZE, three.last(), arrays) is SiteCode.TOTAL
    three.sum(2, *three.for_statistics())
    assert three.code("a", Step.PERSONALIZE, three.last(), arrays) is SiteCode.TOTAL
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
    assert three.code("a", Step.PERSONALIZE, three.last()) is SiteCode.FOLDER
    assert "is no longer there, or damaged" in three.trial.log("a")
    assert three.code("b", Step.PERSONALIZE, three.last()) is SiteCode.OK
    assert {path.name for path in (three.trial.site_folder("b") / "state").iterdir()} == {*usual, "sum.json"}


@pytest.fixture
def ridges(tmp_path: Path) -> LaterTable:
    """Of a ridge with priors, which are asked for after the statistics."""
    table = LaterTable(tmp_path, head="ridge", gradient_rounds=None, prior="client", beta=1.0)
    table.statistics()
    return table


def test_priors_that_are_not_their_turn(table: LaterTable, tmp_path: Path) -> None:
    for ask in (Ask.SCALE, Ask.PRIOR):  # not agreed on
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
    assert ridges.code("a", Step.PERSONALIZE, body, {"priors": pooled[:-1]}) is SiteCode.MALFORMED  # type: ignore[index]
    assert ridges.code("b", Step.PERSONALIZE, body) is SiteCode.MALFORMED
    assert ridges.code("c", Step.PERSONALIZE, body, {"priors": pooled}) is SiteCode.OK


def test_what_two_sums_tell_of_a_leaver_and_why_sites_refuse(table: LaterTable) -> None:
    """With consent to leavers a server that names a site gone has its class sums, nearly: here it does so."""
    for site in FOUR:
        table.trial.policy(site, "allow_leavers = true")
    table.sum(2, *table.question(Ask.TEMPERATURE))
    zero = GridModel(torch.zeros((WIDTH + 1, len(CLASSES)), dtype=torch.int32), 23)
    nearly = replace(zero, steps=zero.steps + torch.eye(WIDTH + 1, len(CLASSES), dtype=torch.int32))
    with_c = table.sum(3, *table.question(Ask.GRADIENT, zero))
    without = table.sum(4, *table.question(Ask.GRADIENT, nearly), sites=("a", "b", "d"))
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
    table.sum(2, *table.question(Ask.TEMPERATURE))
    found = table.sum(3, *table.question(Ask.GRADIENT, GridModel.of(weights)))
    row = term_of(found, LAYOUT, fit.rows).slopes[:, 0] + fit.statistics.cross[:, 0]  # type: ignore[arg-type]
    torch.testing.assert_close(row, X[X[:, 0].argmax()], rtol=0.0, atol=1e-3)
