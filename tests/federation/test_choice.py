"""The choice over the network: a site's candidate, prior and model are those of `fedhip run` on the same rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array as Sent
from flwr.app import RecordDict

from fedhip.data import FeatureSet, make_partition
from fedhip.errors import StatisticsError
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.errors import MessageError, RoundError
from fedhip.federation.server.round import Round
from fedhip.federation.site.state import Session
from fedhip.federation.status_codes import SiteRefusalError
from fedhip.federation.sums import choice
from fedhip.federation.sums.head import federation_of_sites, fit_choice
from fedhip.federation.sums.kind import SumContext
from fedhip.federation.sums.statistics import encoding_of
from fedhip.federation.sums.table import CHOICE, KINDS
from fedhip.federation.sums.vector import Vector
from fedhip.federation.transport.wire import Arrays, Body, Envelope, Letter, RoundStep
from fedhip.heads.auto import ChoiceSums
from fedhip.heads.choice import describe
from fedhip.runs import Run, verify
from fedhip.runs.round.settings import RoundSettings
from fedhip.runs.run import run_round
from fedhip.simulation.client import clients_of
from fedhip.simulation.lifting import LiftSettings
from fedhip.utils.candidates import CANDIDATES
from fedhip.utils.grids import SHARE_STEPS
from tests.cli.samples import done
from tests.federation.grid import ServerKilled
from tests.federation.samples import CLASSES, FOUR, WIDTH, Trial, ridge_options
from tests.federation.test_priors import ROWS, assert_same_answers, skewed_rows

#: No survey, and β by the sum alone: the statistics are sum 1, and those of the choice 2 to 6.
SHORT: dict[str, Any] = {"head": "auto", "columns": "plain", "beta": "gcv"}
SHARES_SUM = 6


def site_rows(site: str) -> tuple[Any, Any]:
    """Those of priors; but site d sees every class as the next one, and clearly."""
    if site != "d":
        return skewed_rows(site)
    labels = np.arange(ROWS) % 3
    means, noise = (np.random.default_rng(seed).normal(size=(rows, WIDTH)) for seed, rows in ((1, 3), (5, ROWS)))
    return 3.0 * means[(labels + 1) % 3] + noise, labels


def choosing(tmp_path: Path, **settings: Any) -> Trial:
    trial = Trial.make(tmp_path, **settings)
    for site in FOUR:
        features, labels = site_rows(site)
        np.savez(trial.data(site), features=features, labels=labels, class_names=np.array(CLASSES))
        trial.policy(site, "smallest_class = 1\nallow_leavers = true" if "quorum" in settings else "smallest_class = 1")
    return trial


@lru_cache
def rows_of_all() -> FeatureSet:
    parts = [site_rows(site) for site in FOUR]
    clients = np.repeat(np.array(FOUR), ROWS)
    return FeatureSet(np.concatenate([F for F, _ in parts]), np.concatenate([y for _, y in parts]), CLASSES, clients)


def fedhip_run(path: Path, agreement: Agreement, **settings: Any) -> Run:
    """The run of the same clients in one process, on the same features."""
    data = rows_of_all()
    partition = make_partition(data.labels, "natural", clients=data.clients)
    lift = None
    if agreement.lift != "none":
        lift = LiftSettings(agreement.lift, agreement.lift_width, seed=agreement.lift_seed or 0)
    told = RoundSettings(ridge=ridge_options(agreement), head="auto", lift=lift, wider=False, **settings)
    config = {
        "alpha": told.alpha, "beta": told.beta, "seed": 0, "only_local_classes": told.only_local_classes,
        "statistics": True,
    }  # fmt: skip
    return run_round(path, data, partition, told, title="", config=config)[0]


def accuracies(run: Run, site: str) -> dict[str, float]:
    return {
        method: next(entry["accuracy"] for entry in found["per_client"] if entry["client"] == site)
        for method, found in run.results["methods"].items()
    }


@pytest.mark.parametrize(
    ("settings", "agreed"),
    [
        ({}, {}),
        ({"prior": "none", "alpha": 2.0}, {}),
        ({"only_local_classes": True, "beta": "gcv"}, {}),
        ({}, {"lift": "relu", "lift_width": 9, "lift_seed": 3}),
    ],
    ids=["usual", "no prior", "local classes", "lift"],
)
@pytest.mark.sampled(2)
def test_models_choices_and_results_are_those_of_fedhip_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], agreed: dict[str, Any]
) -> None:
    trial = choosing(tmp_path, head="auto", **settings, **agreed)
    trial.grid.carry = True  # through the engine's own bytes
    # As of many rows: what is expected of few takes a round of half of them, which no federation has.
    monkeypatch.setattr("fedhip.heads.choice.HALVED", 0)
    result, expected = trial.run(), fedhip_run(tmp_path / "run", trial.agreement, **settings)
    assert result.total() == expected.total()
    sums = [found["ask"] for found in result.results["sums"]]
    assert sums[sums.index("statistics") + 1 + trial.agreement.chooses_beta :] == [
        kind.name for kind in CHOICE if kind.count(trial.agreement)
    ]
    told = expected.results["choice"]
    for site in FOUR:
        own = Run.open(trial.site_folder(site) / "result")
        assert own.details["clients"][site]["choice"] == expected.details["clients"][site]["choice"]
        assert_same_answers(own.model(site), expected.model(site))
        assert own.model(site).settings.keys() == expected.model(site).settings.keys()
        for name, value in own.model(site).settings.items():
            assert value == pytest.approx(expected.model(site).settings[name], rel=1e-9)
        assert_same_answers(own.model(None), expected.model(None))
        assert accuracies(own, site) == accuracies(expected, site)
        mine, theirs = (run.details["clients"][site]["loo_chosen"] for run in (own, expected))
        assert mine == theirs
        mine, theirs = (run.priors(site).get("auto") for run in (own, expected))
        assert (mine is None) == (theirs is None) == (settings.get("prior") == "none")
        if mine is not None and theirs is not None:
            assert mine.smoothing == theirs.smoothing
            assert mine.temperature == pytest.approx(theirs.temperature, rel=1e-9)
        chosen = own.results["choice"]
        assert (chosen["model"], chosen["features"]) == (told["model"], told["features"])
        assert chosen["taken"] == own.details["clients"][site]["choice"]["model"]
        for entry, other in zip(chosen["candidates"], told["candidates"], strict=True):
            assert (entry["model"], entry["held_out"]) == (other["model"], pytest.approx(other["held_out"], rel=1e-12))
        assert not [check for check in verify(own) if check.problem]
    assert_same_answers(result.model(None), expected.model(None))
    assert result.results["choice"]["candidates"] == chosen["candidates"], "the same sums at the server"


def test_a_new_federation_chooses_unless_it_names_what_a_ridge_alone_has(tmp_path: Path) -> None:
    words = ("--name", "x", "--site", "a", "--site", "b", "--site", "c", "--classes", "u,v", "--width", 5)
    for number, (more, head, prior) in enumerate((
        ((), "auto", "client"), (("--prior", "none"), "auto", "none"), (("--alpha", 1), "auto", "client"),
        (("--beta", "gcv"), "ridge", "none"), (("--no-intercept",), "ridge", "none"),
        (("--no-standardize",), "ridge", "none"), (("--head", "auto", "--beta", 0.5), "auto", "client"),
        (("--head", "lda"), "lda", "none"), (("--lift", "none"), "auto", "client"),
    )):  # fmt: skip
        done("federation", "init", tmp_path / f"{number}", *words, *more)
        agreement = Agreement.read(tmp_path / f"{number}" / "federation.toml")
        assert (agreement.head, agreement.prior) == (head, prior), more
        assert (agreement.candidates is not None) == (head == "auto")


# --- the sums ---------------------------------------------------------------------------------------------------------


def captured(monkeypatch: pytest.MonkeyPatch) -> list[Vector]:
    """The sums that the server tells the sites, as it has them."""
    found: list[Vector] = []
    honest = Round._choice_message

    def message(own: Round) -> tuple[Body, Arrays]:
        body, arrays = honest(own)
        found.append(arrays[choice.ARRAY])
        return body, arrays

    monkeypatch.setattr(Round, "_choice_message", message)
    return found


def test_sums_are_those_of_one_process_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sums_only: None
) -> None:
    trial, found = choosing(tmp_path, **SHORT), captured(monkeypatch)
    trial.run()
    agreement, data = trial.agreement, rows_of_all()
    everybody = clients_of(data, make_partition(data.labels, "natural", clients=data.clients))
    summed = Run.open(trial.result)
    federation = federation_of_sites(agreement, summed.total(), summed.results["beta"], encoding_of(agreement, None))
    head = fit_choice(federation, agreement, everybody, ChoiceSums())
    parts = choice.parts_of(found[0], agreement)
    assert list(parts) == [kind.name for kind in CHOICE]
    for ask, part in parts.items():
        vectors = [choice.vector_of(ask, head, client, agreement) for client in everybody]
        assert np.array_equal(part, np.stack(vectors).sum(axis=0, dtype=np.uint64)), ask


def agreement_of(**settings: Any) -> Agreement:
    usual: dict[str, Any] = {"name": "x", "sites": ("a", "b", "c"), "classes": ("x", "y"), "width": 3}
    more = {"candidates": tuple(map("+".join, CANDIDATES)), "prior": "client", **settings}
    return Agreement(**usual, head="auto", fraction_bits=32, quorum=3, threshold=3, max_rows=9, **more)


def test_a_sum_that_no_rows_have_is_refused() -> None:
    agreed, rows = agreement_of(), np.array([5, 4])
    context = SumContext(agreed, rows, sites=3)
    size = {kind.name: kind.length(agreed) for kind in CHOICE}

    def refused(ask: str, change: Callable[[Vector], None], message: str) -> None:
        total = np.ones(size[ask], np.uint64)
        if ask == choice.SHARES:
            total[-1] = 3
        KINDS[ask].check_sum(total, context)
        change(total)
        with pytest.raises(StatisticsError, match=message):
            KINDS[ask].check_sum(total, context)

    def put(at: int, value: int) -> Callable[[Vector], None]:
        return lambda total: total.view(np.int64).__setitem__(at, value)

    refused(choice.MEANS, put(3, -1), "below 0")
    refused(choice.MEMBERS, put(-1, -1), "below 0")
    refused(choice.SCALES, put(4, 19), "19 scores, of 9 rows and 2 classes")
    refused(choice.SCALES, put(-1, 0), "0 scores")
    refused(choice.PRIORS, put(-1, 10), "'ridge\\+global\\+lda\\+alone'")
    refused(choice.PRIORS, put(0, -1), "'ridge'")
    refused(choice.PRIORS, put(130, 2), "'ridge'")
    refused(choice.SHARES, put(0, 3 * SHARE_STEPS + 1), "more rows right than there are")
    refused(choice.SHARES, put(0, -1), "more rows right than there are")
    refused(choice.SHARES, put(-1, 4), "judged by 4 sites, and 3 took part")
    refused(choice.SHARES, put(-1, 2), "judged by 2 sites, and 3 took part")


def test_shares_are_too_coarse_to_tell_of_how_many_rows() -> None:
    """Two sites of 97 and 89 rows: on a grid of 2^-32 the denominator of both stands out; on this one, none does."""
    rng = np.random.default_rng(0)
    exact = rng.integers(30, 80, 12) / 97 + rng.integers(30, 80, 12) / 89

    def fits(shares: Any, step: float) -> list[int]:
        """The denominators below 10,000 with which all shares are fractions, as near as rounding leaves them."""
        return [d for d in range(2, 10_000) if (np.abs(shares * d - np.rint(shares * d)) <= min(step * d, 0.5)).all()]

    fine = np.rint(exact * 2**32) / 2**32
    assert fits(fine, 2.0**-32) == [97 * 89]
    coarse = np.rint(exact * SHARE_STEPS) / SHARE_STEPS
    found = fits(coarse, 1 / SHARE_STEPS)
    assert len(found) > 1000, "every larger number will do"
    assert min(found) != 97 * 89


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_leaver_is_not_among_the_judges_and_gets_its_model(tmp_path: Path) -> None:
    trial = choosing(tmp_path, quorum=3, threshold=3, **SHORT)
    trial.fault("late", "c", "mask", round=SHARES_SUM)
    result = trial.run()
    assert [found["sites"] for found in result.results["sums"]] == [list(FOUR)] * 5 + [["a", "b", "d"]]
    mine = [Run.open(trial.site_folder(site) / "result").results["choice"] for site in FOUR]
    assert len({found["model"] for found in mine}) == 1
    assert mine[2]["candidates"] == mine[0]["candidates"]


def test_without_consent_nobody_goes_on(tmp_path: Path) -> None:
    trial = choosing(tmp_path, **SHORT)
    trial.fault("silent", "c", "keys", round=4)
    with pytest.raises(RoundError, match="when the sites are back, and it goes on from here"):
        trial.run()
    trial.again()
    assert [found["sites"] for found in trial.run().results["sums"]] == [list(FOUR)] * 6


def test_a_killed_server_goes_on_with_the_sums_it_has(tmp_path: Path, another_user: Callable[[], None]) -> None:
    trial, other = (choosing(tmp_path / name, **SHORT) for name in ("killed", "whole"))
    trial.grid.stop_at = ("unmask", 4 * 4 + 2)
    with pytest.raises(ServerKilled):
        trial.run()
    trial.again()
    found = trial.run().results["choice"]
    another_user()
    assert other.run().results["choice"] == found


@pytest.mark.parametrize("number", [4, SHARES_SUM])
@pytest.mark.sampled(2)
def test_wrong_numbers_under_a_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    trial = choosing(tmp_path, **SHORT)

    def more(vector: Vector) -> None:
        vector[-1] += np.uint64(1_000_000)  # scores, rows judged, or sites that judge

    trial.lie(monkeypatch, "c", more, round=number)
    with pytest.raises(RoundError, match="wrong numbers under its mask"):
        trial.run()
    assert not trial.result.exists()


def told_otherwise(change: Callable[[Vector], Vector]) -> Callable[[RecordDict], RecordDict]:
    """A question whose sums of the choice are others."""

    def changed(content: RecordDict) -> RecordDict:
        arrays = content.array_records["arrays"]
        sent = arrays[choice.ARRAY]
        made_up = change(np.frombuffer(sent.data, "<u8").copy())
        arrays[choice.ARRAY] = Sent(dtype="uint64", shape=made_up.shape, stype=sent.stype, data=made_up.tobytes())
        return content

    return changed


def with_best(at: int) -> Callable[[Vector], Vector]:
    """Shares by which another candidate is best, and that rows could have."""

    def change(told: Vector) -> Vector:
        shares = told[-len(CANDIDATES) - 1 : -1]
        shares[at] = shares.max() + np.uint64(120)
        return told

    return change


def test_another_best_candidate_for_one_site_shows(tmp_path: Path) -> None:
    """Each site decides by the sum; a sum of its own that others could have shows when two compare digests."""
    trial = choosing(tmp_path, **SHORT)
    trial.fault("asked", "b", "personalize", told_otherwise(with_best(CANDIDATES.index(("majority",)))))
    trial.run()
    digests = {}
    for site in FOUR:
        (line,) = [line for line in trial.log(site).splitlines() if "the sums of the choice have digest" in line]
        digests[site] = line.partition("digest ")[2].partition(":")[0]
    assert digests["a"] == digests["c"] == digests["d"] != digests["b"]
    models = {site: Run.open(trial.site_folder(site) / "result").results["choice"]["model"] for site in FOUR}
    assert models["b"] == "majority" != models["a"] == models["c"]


def put_share(at: int, value: int) -> Callable[[Vector], Vector]:
    def change(told: Vector) -> Vector:
        told[-len(CANDIDATES) - 1 + at] = value
        return told

    return change


def fewer(told: Vector) -> Vector:
    return told[:-1]


def more(told: Vector) -> Vector:
    return np.append(told, np.uint64(4))


def other_sites(told: Vector) -> Vector:
    told[-1] = 3
    return told


def another_temperature(told: Vector) -> Vector:
    told[0] += np.uint64(1)
    return told


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put_share(0, 4 * SHARE_STEPS + 1), "more rows right than there are"),
        (other_sites, "judged by 3 sites, and 4 took part"),
        (fewer, "numbers of uint64 came for the choice, where 1974 belong: 8 candidates are agreed on"),
        (more, "numbers of uint64 came for the choice, where 1974 belong: 8 candidates are agreed on"),
        (another_temperature, "another sum 'choice-means' than the one that came first"),
    ],
    ids=["too many", "sites", "fewer", "more", "before"],
)
def test_a_site_refuses_sums_that_are_none(change: Callable[[Vector], Vector], message: str) -> None:
    agreed = replace(agreement_of(), sites=FOUR, quorum=4, threshold=4, beta=1.0)
    honest = np.ones(sum(choice.lengths(agreed).values()), np.uint64)
    honest[-1] = 4
    session = Session(bytes(16), "", "", ask=choice.SHARES, cohort=list(FOUR), answers={"unmask": ("", None)})
    envelope = Envelope(bytes(16), "", "", RoundStep.PERSONALIZE)

    def check(told: Vector) -> None:
        choice.check_choice("", Letter(envelope, {"beta": 1.0}, {choice.ARRAY: told}), session, agreed)

    check(honest)
    known = dict(session.choice)
    if message.startswith(("more", "judged")):
        del session.choice[choice.SHARES]  # it comes for the first time
    with pytest.raises((SiteRefusalError, MessageError), match=message):
        check(change(honest.copy()))
    assert session.choice.keys() == known.keys()


@pytest.mark.parametrize("steps", [0, 4 * SHARE_STEPS])
@pytest.mark.sampled(2)
def test_shares_that_leave_none_to_the_others_make_no_model(tmp_path: Path, steps: int) -> None:
    trial = choosing(tmp_path, **SHORT, prior="none")
    trial.fault("asked", "b", "personalize", told_otherwise(put_share(0, steps)))
    trial.run()
    assert not (trial.site_folder("b") / "result").exists()
    assert "shares of rows right to 3 others that none have" in trial.log("b").splitlines()[-1]
    assert (trial.site_folder("a") / "result").exists()


def test_one_site_asked_about_another_sum_of_before_is_noticed_by_all(tmp_path: Path) -> None:
    trial = choosing(tmp_path, **SHORT)
    trial.fault("asked", "b", "keys", told_otherwise(another_temperature), round=3)
    with pytest.raises(RoundError):
        trial.run()
    for site in FOUR:
        assert "keys of sum 3: answered" in trial.log(site)
        assert "mask of sum 3" not in trial.log(site), "nobody gives a vector to a sum about different things"


def test_a_site_of_one_row_and_a_site_of_one_class(tmp_path: Path) -> None:
    trial = choosing(tmp_path, **SHORT)
    features, labels = site_rows("a")
    names = np.array(CLASSES)
    np.savez(trial.data("a"), features=features[:1], labels=labels[:1], class_names=names, split=np.zeros(1, np.int64))
    features, labels = site_rows("b")
    np.savez(trial.data("b"), features=features, labels=0 * labels, class_names=names)
    trial.run()
    one, same = (Run.open(trial.site_folder(site) / "result") for site in "ab")
    assert set(one.results["choice"]["taken"].split("+")) <= {"global", "lda"}, "it has nothing to judge by"
    assert bool(torch.isfinite(same.model("b").weights).all())


def test_who_joins_the_result_chooses_by_its_own_rows(tmp_path: Path) -> None:
    trial = choosing(tmp_path, **SHORT)
    trial.run()
    features, labels = skewed_rows("late")
    np.savez(tmp_path / "late.npz", features=features, labels=labels, class_names=np.array(CLASSES))
    done("join", trial.result, "--client", "late", "--features", tmp_path / "late.npz")
    joined = Run.open(trial.result)
    assert joined.details["clients"]["late"]["choice"]["model"] in tuple(map("+".join, CANDIDATES))
    assert joined.model("late").head == "auto"
    assert not [check for check in verify(joined) if check.problem]


def test_a_few_candidates_are_agreed_on(tmp_path: Path) -> None:
    """Of an agreement of another version, for instance: nothing else is chosen."""
    some = ("global", "lda", "global+lda")
    trial = choosing(tmp_path, candidates=some, **SHORT)
    trial.run()
    for site in FOUR:
        chosen = Run.open(trial.site_folder(site) / "result").results["choice"]
        assert [entry["model"] for entry in chosen["candidates"]] == list(some)
        assert chosen["taken"] in some


def test_the_report_says_what_the_site_took(tmp_path: Path, reports: None) -> None:
    trial = choosing(tmp_path, **SHORT, prior="none")
    trial.run()
    own = Run.open(trial.site_folder("a") / "result")
    page = (own.path / "report.html").read_text()
    assert "Which model was chosen" in page
    assert f"Chosen by cross-validation on {4 * 48} training rows" in page
    stored = {**own.results["choice"], "taken": "majority"}
    assert "On this site's own rows another is best, and is used: its most frequent class." in describe(stored)
    assert "this site's own rows" not in describe({**stored, "taken": stored["model"]})
    # By folds of so few rows too much would be expected: on noise .28, where chance is .25.
    assert own.details["clients"]["a"]["loo_chosen"] is None
    assert own.results["leave_one_out"] is None
    assert set(own.results["choice"]["expected"].values()) == {None}
