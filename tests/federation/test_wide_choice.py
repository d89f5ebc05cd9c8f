"""A lift that competes over the network: the same features, candidates and models as `fedhip run` on the same rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhip.data import FeatureSet, make_partition
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.init import draft
from fedhip.federation.errors import RoundError, SetupError
from fedhip.federation.server.round import Round
from fedhip.federation.server.sums import RoundSums
from fedhip.federation.sums.kind import SumStage
from fedhip.federation.sums.table import KINDS, PLAIN, PRODUCTS, STATISTICS, WIDE, sums_of
from fedhip.federation.sums.vector import Vector
from fedhip.federation.transport.wire import Arrays, Body
from fedhip.runs import Run, verify
from fedhip.runs.round.settings import RoundSettings
from fedhip.runs.run import run_round
from fedhip.utils.candidates import WIDE_CANDIDATES
from tests.cli.samples import done
from tests.federation.grid import ServerKilled
from tests.federation.samples import CLASSES, FOUR, WIDTH, Trial, ridge_options
from tests.federation.test_choice import accuracies
from tests.federation.test_priors import assert_same_answers

#: As wide as it is agreed on, and `fedhip run` is told.
W = 40
ROWS = 60


def rings(site: str) -> tuple[Any, Any]:
    """Rows whose class is how far out they are: no linear model of the features has them right."""
    rng = np.random.default_rng(list(f"ring {site}".encode()))
    features = rng.normal(size=(ROWS, WIDTH))
    return features * [5.0, 0.1, 1.0, 1.0, 1.0, 1.0] + 3.0, np.digitize((features**2).sum(axis=1), (4.0, 7.0))


def alone(site: str) -> tuple[Any, Any]:
    """Rows whose classes lie apart, and are other ones at every site: its own rows alone do best, without a lift."""
    rng, classes = np.random.default_rng(list(f"alone {site}".encode())), np.arange(ROWS) % 3
    means = np.random.default_rng(3).normal(size=(3, WIDTH))
    return 0.5 * means[classes] + rng.normal(size=(ROWS, WIDTH)), (classes + FOUR.index(site)) % 3


ROWS_OF = {"rings": rings, "alone": alone}


def competing(tmp_path: Path, rows: str = "rings", **settings: Any) -> Trial:
    trial = Trial.make(tmp_path, **{"head": "auto", "competing_width": W, **settings})
    for site in trial.sites:
        features, labels = ROWS_OF[rows](site)
        np.savez(trial.data(site), features=features, labels=labels, class_names=np.array(CLASSES))
        trial.policy(site, "smallest_class = 1")
    return trial


@lru_cache
def rows_of_all(rows: str) -> FeatureSet:
    parts = [ROWS_OF[rows](site) for site in FOUR]
    clients = np.concatenate([np.repeat(site, len(labels)) for site, (_, labels) in zip(FOUR, parts, strict=True)])
    return FeatureSet(np.concatenate([F for F, _ in parts]), np.concatenate([y for _, y in parts]), CLASSES, clients)


def fedhip_run(path: Path, agreement: Agreement, rows: str, **settings: Any) -> Run:
    """The run of the same clients in one process."""
    data = rows_of_all(rows)
    partition = make_partition(data.labels, "natural", clients=data.clients)
    told = RoundSettings(ridge=ridge_options(agreement), head="auto", **settings)
    config = {
        "alpha": told.alpha, "beta": told.beta, "seed": 0, "only_local_classes": told.only_local_classes,
        "statistics": True,
    }  # fmt: skip
    return run_round(path, data, partition, told, title="", config=config)[0]


@pytest.mark.parametrize(
    ("rows", "settings"),
    [("rings", {}), ("rings", {"prior": "none", "alpha": 2.0}), ("alone", {})],
    ids=["lift", "lift without prior", "features alone"],
)
def test_models_choices_and_results_are_those_of_fedhip_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str, settings: dict[str, Any]
) -> None:
    trial = competing(tmp_path, rows, **settings)
    trial.grid.carry = True  # through the engine's own bytes
    monkeypatch.setattr("fedhip.heads.choice.HALVED", 0)
    monkeypatch.setattr("fedhip.heads.choice.COMPETING_WIDTH", W)
    result, expected = trial.run(), fedhip_run(tmp_path / "run", trial.agreement, rows, **settings)
    told = expected.results["choice"]
    lifted = rows == "rings"
    assert told["features"] == (f"nystroem-axes {W}" if lifted else "as they are"), "or the test is of the other"
    assert result.total() == expected.total()
    made = [found["ask"] for found in result.results["sums"]]
    both = [kind.name for sums in (WIDE, PLAIN)[: 1 if lifted else 2] for kind in sums.all]
    given = [name for name in both if trial.agreement.prior == "client" or not name.endswith(("scales", "priors"))]
    assert made == ["moments", PRODUCTS.name, *given]
    assert result.results.get("lift") == expected.results.get("lift")
    for site in FOUR:
        own = Run.open(trial.site_folder(site) / "result")
        assert own.details["clients"][site]["choice"] == expected.details["clients"][site]["choice"]
        assert_same_answers(own.model(site), expected.model(site))
        assert_same_answers(own.model(None), expected.model(None))
        assert own.model(site).settings.keys() == expected.model(site).settings.keys()
        for name, value in own.model(site).settings.items():
            assert value == pytest.approx(expected.model(site).settings[name], rel=1e-9), name
        assert accuracies(own, site) == accuracies(expected, site)
        mine, theirs = (run.details["clients"][site]["loo_chosen"] for run in (own, expected))
        assert mine == theirs
        mine, theirs = (run.priors(site).get("auto") for run in (own, expected))
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            assert mine.smoothing == theirs.smoothing
            assert mine.temperature == pytest.approx(theirs.temperature, rel=1e-9)
        chosen = own.results["choice"]
        assert (chosen["model"], chosen["features"]) == (told["model"], told["features"])
        assert chosen["taken"] == own.details["clients"][site]["choice"]["model"]
        for entry, other in zip(chosen["candidates"], told["candidates"], strict=True):
            assert (entry["features"], entry["model"]) == (other["features"], other["model"])
            assert entry["held_out"] == pytest.approx(other["held_out"], rel=1e-12)
            assert entry.get("usual") == other.get("usual")
        assert own.results["lift"] == expected.results["lift"] if lifted else "lift" not in own.results
        assert not [check for check in verify(own) if check.problem]
        assert not list((trial.site_folder(site) / "state").glob("*al.bin"))  # no sum is left there
    assert_same_answers(result.model(None), expected.model(None))
    assert result.results["choice"]["candidates"] == chosen["candidates"], "the same sums at the server"
    assert not [check for check in verify(result) if check.problem]
    done("predict", trial.site_folder("a") / "result", "--client", "a", "--features", trial.data("a"))


# --- whether it competes ----------------------------------------------------------------------------------------------


def sums_made(trial: Trial) -> list[str]:
    return [found["ask"] for found in Run.open(trial.result).results["sums"]]


@pytest.mark.parametrize(("width", "competes"), [(4 * ROWS, False), (4 * ROWS // 5 * 4, True)])
def test_without_a_census_there_must_be_as_many_rows_as_the_lift_is_wide(
    tmp_path: Path, sums_only: None, width: int, competes: bool
) -> None:
    trial = competing(tmp_path, competing_width=width, prior="none")
    trial.run()
    assert (PRODUCTS.name in sums_made(trial)) == competes
    said = f"the lift nystroem-axes {width} does not compete: there are {4 * ROWS // 5 * 4} rows"
    assert any(event["text"].endswith(said) for event in trial.events()) != competes


def test_a_site_objects_where_the_others_have_fewer_rows_than_columns(tmp_path: Path) -> None:
    """Of 4 times 48 rows the others have 144: as many as columns, or one fewer. The round goes on without the lift."""
    fits = competing(tmp_path / "fits", few_rows=False, prior="none", competing_width=144 - WIDTH)
    fits.run()
    assert sums_made(fits)[1:3] == ["products", "wide-statistics"]
    few = competing(tmp_path / "few", few_rows=False, prior="none", competing_width=145 - WIDTH)
    result = few.run()
    assert sums_made(few)[1:3] == ["products", "statistics"]
    assert result.results["choice"]["features"] == "as they are"
    assert "4 sites find that all others together have fewer rows than the 145 columns" in str(few.events())
    for site in FOUR:
        assert "have 144 training rows together, and with a lift there would be 145 columns: this site objects" in (
            few.log(site)
        )
        assert (few.site_folder(site) / "result").exists()


def test_a_server_that_hides_objections_gets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that nobody objects, and asks for the statistics with the lift: sites see that theirs is missing."""
    trial = competing(tmp_path, few_rows=False, prior="none", competing_width=145 - WIDTH)
    honest = RoundSums.kept

    def hiding(own: RoundSums, number: int) -> Vector:
        found = honest(own, number)
        if own.progress.asks[number - 1] == PRODUCTS.name:
            found = np.append(found[:-1], np.uint64(0))
        return found

    monkeypatch.setattr(RoundSums, "kept", hiding)
    with pytest.raises(RoundError):
        trial.run()
    for site in FOUR:
        assert "the sum that came does not fit this site's rows" in trial.log(site)
        assert "mask of sum 3" not in trial.log(site), "no statistics have left"


def test_a_server_that_asks_for_the_lift_in_spite_of_objections_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = competing(tmp_path, few_rows=False, prior="none", competing_width=145 - WIDTH)
    monkeypatch.setattr("fedhip.federation.server.round.objections", lambda _: 0)
    with pytest.raises(RoundError):
        trial.run()
    for site in FOUR:
        assert "mask of sum 3" not in trial.log(site), "no statistics have left"
        assert "there are 145 features: a sum of so few can be taken apart into rows" in trial.log(site)


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "number"), [("rings", 3), ("rings", 5), ("alone", 9)])
def test_nobody_leaves_while_the_lift_competes(tmp_path: Path, rows: str, number: int) -> None:
    """The sums of products, with the lift and of the features alone hold the same: one fewer would be that site's.

    The statistics with the lift are sum 3; without priors those of the features alone are sum 8, and β is 9.
    """
    trial = competing(tmp_path, rows, quorum=3, threshold=3, prior="none")
    for site in FOUR:
        trial.policy(site, "smallest_class = 1\nallow_leavers = true")
    trial.fault("silent", "c", "keys", round=number)
    if number > 8:  # then it is as ever
        assert trial.run().results["sums"][-1]["sites"] == ["a", "b", "d"]
        return
    with pytest.raises(RoundError, match="goes on from here"):
        trial.run()
    assert "is one site's own statistics: this one is refused, whatever allow_leavers says" in trial.log("a")
    trial.again()
    assert {len(found["sites"]) for found in trial.run().results["sums"]} == {4}


def test_the_statistics_of_the_features_are_not_given_while_the_lift_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = competing(tmp_path, prior="none")

    def too_early(own: Round) -> tuple[dict[str, Any], dict[str, Any]]:
        own._sum(STATISTICS, {}, {})
        raise AssertionError("sites went on")

    monkeypatch.setattr(Round, "_choice_message", too_early)
    with pytest.raises(RoundError):
        trial.run()
    assert "before the sums with the lift are all made" in trial.log("a")


@pytest.mark.parametrize("takes", [True, False])
def test_a_server_that_takes_other_features_than_the_shares_say_gets_no_model_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes: bool
) -> None:
    trial = competing(tmp_path, "alone" if takes else "rings", prior="none")
    honest = Round._try_lift

    def otherwise(own: Round) -> tuple[tuple[Body, Arrays], bool]:
        message, taken = honest(own)
        assert taken != takes
        return message, takes

    monkeypatch.setattr(Round, "_try_lift", otherwise)
    trial.run()
    for site in FOUR:
        assert not (trial.site_folder(site) / "result").exists()
        assert "sums of the features alone, and by the shares that it tells it is not so" in trial.log(site)


def test_a_killed_server_goes_on(tmp_path: Path, another_user: Callable[[], None]) -> None:
    """In the sums with the lift, and in those of the features after them."""
    trial, other = (competing(tmp_path / name, "alone", prior="none") for name in ("killed", "whole"))
    for stop in (("unmask", 4 * 3 + 2), ("unmask", 4 * 6 + 2)):
        trial.grid.stop_at = stop
        with pytest.raises(ServerKilled):
            trial.run()
        trial.again()
    found = trial.run().results["choice"]
    another_user()
    assert other.run().results["choice"] == found


@pytest.mark.parametrize("rows", ROWS_OF)
def test_bytes_are_those_of_the_sums_that_were_made(tmp_path: Path, rows: str) -> None:
    trial = competing(tmp_path, rows)
    result = trial.run()
    sent = sum(8 * KINDS[ask].length(trial.agreement) for ask in sums_made(trial))
    for run in (result, Run.open(trial.site_folder("b") / "result")):
        assert run.results["methods"]["auto"]["upload_bytes_per_client"] == sent
        tried = run.results["choice"]["upload_bytes_per_client"]
        of_lift = sum(8 * kind.length(trial.agreement) for kind in (PRODUCTS, *WIDE.all))
        assert tried == (of_lift if rows == "alone" else 0)


def test_who_joins_a_result_with_the_lift(tmp_path: Path) -> None:
    trial = competing(tmp_path)
    trial.run()
    features, labels = rings("late")
    np.savez(tmp_path / "late.npz", features=features, labels=labels, class_names=np.array(CLASSES))
    done("join", trial.result, "--client", "late", "--features", tmp_path / "late.npz")
    joined = Run.open(trial.result)
    assert joined.model("late").weights.shape == (W + WIDTH, len(CLASSES))
    assert not [check for check in verify(joined) if check.problem]


# --- what is agreed on ------------------------------------------------------------------------------------------------


def test_a_new_federation_has_a_lift_compete_where_features_are_narrow(tmp_path: Path) -> None:
    words = ("--name", "x", "--site", "a", "--site", "b", "--site", "c", "--classes", "u,v")
    for number, (more, width) in enumerate((
        (("--width", 5), 1024), (("--width", 256), 1024), (("--width", 257), None),
        (("--width", 5, "--lift", "none"), None),
        (("--width", 5, "--lift", "relu"), None), (("--width", 5, "--head", "ridge"), None),
        (("--width", 5, "--columns", "plain"), None), (("--width", 5, "--veto-share", 0.2), None),
        (("--width", 5, "--head", "auto", "--beta", 0.5), None),
    )):  # fmt: skip
        done("federation", "init", tmp_path / f"{number}", *words, *more)
        agreement = Agreement.read(tmp_path / f"{number}" / "federation.toml")
        assert agreement.competing_width == width, more
        assert (agreement.wide is None) == (width is None)
    wide = Agreement.read(tmp_path / "0" / "federation.toml").wide
    assert wide is not None
    assert wide.members_of_candidates == WIDE_CANDIDATES
    assert (wide.layout.m, wide.kept, wide.wide) == (1029, 5, None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"competing_lift": None}, "competing_lift and competing_width belong together"),
        ({"competing_lift": "relu"}, "competing_lift is 'relu'"),
        ({"competing_width": 0}, "competing_width is 0; give a whole number from 1"),
        ({"head": "lda", "candidates": None}, "beside the head 'lda', which chooses nothing"),
        ({"lift": "relu", "lift_width": 9, "lift_seed": 1}, "beside the lift 'relu', which all candidates are of"),
        ({"columns": "plain"}, "beside columns = 'plain', and its landmarks need the units of a survey"),
        ({"beta": 0.5}, "beside beta = 0.5, and each of the two has a β of its own"),
        ({"veto_share": 0.5}, "beside a veto_share, and vetoes are of the sum of the features as they are"),
    ],
)
def test_what_a_lift_that_competes_cannot_go_with(settings: dict[str, Any], message: str) -> None:
    agreed = draft(name="x", sites=FOUR, classes=CLASSES, width=WIDTH)
    with pytest.raises(SetupError, match=re.escape(message)):
        replace(agreed, **settings)


def test_an_agreement_of_before_is_as_it_was() -> None:
    agreed = draft(name="x", sites=FOUR, classes=CLASSES, width=WIDTH, lift="none")
    assert "competing" not in agreed.to_text()
    assert agreed.wide is None
    assert not [kind for kind in sums_of(agreed) if kind.stage in (SumStage.WIDE, SumStage.WIDE_CHOICE)]
