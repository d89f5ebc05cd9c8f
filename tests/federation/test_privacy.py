"""Differential privacy between machines: what is released, who adds which noise, once, and what it costs."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedhip.cli.main import main
from fedhip.data.tables import Column, Description
from fedhip.errors import InputError, StatisticsError
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.init import draft
from fedhip.federation.agreement.limits import least_threshold
from fedhip.federation.agreement.policy import Policy
from fedhip.federation.agreement.privacy import colluders, mechanism_of, public_of
from fedhip.federation.agreement.summary import in_words
from fedhip.federation.errors import PolicyError, RoundError, SetupError
from fedhip.federation.site.folder import open_site
from fedhip.federation.site.inputs import Inputs, make_vector
from fedhip.federation.site.ledger import Fingerprint, SumLedger
from fedhip.federation.site.rows import SiteRows
from fedhip.federation.site.session_ledger import require_sums
from fedhip.federation.site.site import Site
from fedhip.federation.site.state import Session, SiteState
from fedhip.federation.status_codes import SiteCode, SiteRefusalError
from fedhip.federation.sums.private import check_noisy_part, check_noisy_sum
from fedhip.federation.sums.table import STATISTICS, TABLE, sums_of
from fedhip.federation.sums.vector import Vector, from_vector, to_vector
from fedhip.federation.transport.wire import RoundStep
from fedhip.privacy.accounting import epsilon_of, rho_of
from fedhip.privacy.attacks import Upload, recover_rows, single_rows
from fedhip.privacy.mechanism import Mechanism
from fedhip.privacy.noise import derived
from fedhip.privacy.public import PublicMap
from fedhip.runs import Run
from fedhip.runs.report import render_report
from tests.drawing import examples
from tests.federation.samples import CLASSES, EIGHT, FOUR, WIDTH, Trial, rows_of, write_rows
from tests.federation.table import Table

PRIVATE: dict[str, Any] = {"few_rows": False, "epsilon": 8.0, "clip": 4.0}


def agreed(**given: Any) -> Agreement:
    known = {"name": "x", "sites": FOUR, "classes": CLASSES, "width": WIDTH, "epsilon": 8.0, "clip": 4.0}
    return draft(**{**known, **given})


def inputs_of(trial: Trial, site: str) -> Inputs:
    folder = open_site(trial.site_folder(site))
    session = Session(b"s" * 32, folder.agreement.digest(), folder.roster.digest())
    (trial.site_folder(site) / "state").mkdir(exist_ok=True)
    return Inputs(folder, SiteState(folder.path), session, None, trial.data(site), None, None)  # type: ignore[arg-type]


def exact_of(trial: Trial, site: str) -> Vector:
    """A site's numbers without noise, by its own rows."""
    client, agreement = inputs_of(trial, site).client, trial.agreement
    mechanism = mechanism_of(agreement)
    return to_vector(mechanism.encoded(public_of(agreement), *client.train, len(CLASSES), site))


def sent_by(trial: Trial, site: str) -> Vector:
    return STATISTICS.vector(inputs_of(trial, site))


# What is released.


@pytest.mark.parametrize("secure", [True, False])
def test_no_sum_of_the_table_is_without_noise(secure: bool) -> None:
    """Every row of the table: with ε it is not asked for, or it has noise; and a site makes no other."""
    agreement = agreed(secure_sum=secure, local_noise=not secure)
    assert [kind.name for kind in sums_of(agreement)] == ["statistics"]
    for kind in TABLE:
        assert kind.has_noise or kind.count(agreement) == 0
    for field, value in (
        ("head", "lda"), ("head", "logistic"), ("prior", "client"), ("lift", "relu"), ("few_rows", True),
        ("columns", "sum"), ("beta", "gcv"), ("standardize", False),
    ):  # fmt: skip
        more = {"lift_width": 9, "lift_seed": 0} if field == "lift" else {}
        with pytest.raises(SetupError, match=r"leave (it )?out"):
            agreed(**{field: value}, **more)


def test_a_site_makes_no_sum_without_noise_whoever_asks(tmp_path: Path) -> None:
    inputs = inputs_of(Trial.make(tmp_path, **PRIVATE), "a")
    for kind in TABLE:
        if not kind.has_noise:
            with pytest.raises(SiteRefusalError, match=f"the sum '{kind.name}' has no noise"):
                make_vector(kind, inputs)


def test_a_round_releases_the_sum_of_what_sites_sent_and_every_number_of_it_has_noise(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path, **PRIVATE)
    server = trial.run()
    agreement, mechanism = trial.agreement, mechanism_of(trial.agreement)
    parts = [sent_by(trial, site) for site in FOUR]
    exact = [exact_of(trial, site) for site in FOUR]
    total = from_vector(sum(parts, np.zeros_like(parts[0])), agreement.layout, agreement.fraction_bits)
    assert torch.equal(server.total().gram, total.gram)
    assert torch.equal(server.total().cross, total.cross)
    # The noise of each site, and of the sum: chi-square against the deviations that they should have.
    triangle = np.triu_indices(agreement.layout.m)
    share, beside = mechanism.share
    sigma = np.where(triangle[0] == triangle[1], share, beside).astype(float)
    sigma = np.concatenate((sigma, np.full(agreement.layout.m * len(CLASSES), float(share))))
    for vectors, clean, sites in ((parts[0], exact[0], 1), (sum(parts[1:], parts[0]), sum(exact[1:], exact[0]), 4)):
        noise = (vectors - clean).view(np.int64)[: -len(CLASSES)]
        assert (np.abs(noise) > 0).all()
        assert 1e-6 < stats.chi2.sf(float(((noise / sigma) ** 2).sum() / sites), len(noise)) < 1.0 - 1e-6
    assert not any(agreement.layout.counts(part).any() for part in parts)
    assert server.results["privacy"]["guarantee"] == mechanism.sentence("site")
    assert [check.what for check in server.verify() if check.problem] == []


def test_a_sites_model_is_that_of_one_process_from_the_same_sum(tmp_path: Path) -> None:
    from fedhip.simulation.private import PrivateFederation, personalize_privately

    trial = Trial.make(tmp_path, **PRIVATE)
    trial.run()
    at_site = Run.open(trial.site_folder("b") / "result")
    federation = at_site.federation()
    assert isinstance(federation, PrivateFederation)
    assert federation.mechanism == mechanism_of(trial.agreement)
    found = personalize_privately(federation, inputs_of(trial, "b").client)
    torch.testing.assert_close(at_site.model("b").weights, found.model.weights, rtol=1e-9, atol=1e-12)
    assert at_site.model("b").alpha == found.alpha
    assert federation.beta == pytest.approx(federation.mechanism.edge)
    assert at_site.results["privacy"]["epsilon"] == 8.0
    assert at_site.results["config"]["epsilon"] == 8.0
    assert "(8, 1e-05)-differential privacy protects" in render_report([at_site.record("b")])
    assert [check.what for check in at_site.verify() if check.problem] == []
    assert len(at_site.predict(rows_of("b")[0], "b")) == len(rows_of("b")[0])


def test_accuracies_are_not_told(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path, **PRIVATE)
    for site in FOUR:
        trial.policy(site, "tell_accuracy = true")
    assert all(not method["per_client"] for method in trial.run().results["methods"].values())


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_the_attacks_of_the_audit_find_nobody_in_a_sum_with_noise_and_everybody_without(
    tmp_path: Path, epsilon: float
) -> None:
    """Few rows of many features, all colluders' shares taken off the sum, and the true counts given for nothing."""
    width, rows, rng = 40, 6, np.random.default_rng(0)
    # As many rows as the agreement's check of size asks for would hide each other: so the vectors alone, no round.
    trial = Trial.make(tmp_path, few_rows=False, epsilon=epsilon, clip=5.0, width=width)
    known = ("d",)
    for site in FOUR:
        labels = np.arange(rows) % len(CLASSES)
        np.savez(
            trial.data(site), features=rng.normal(size=(rows, width)), labels=labels, class_names=np.array(CLASSES),
            split=np.zeros(rows, np.int8),
        )  # fmt: skip
    agreement, honest = trial.agreement, [site for site in FOUR[:3] if site not in known]
    noisy, exact = (sum((f(trial, s) for s in honest[1:]), f(trial, honest[0])) for f in (sent_by, exact_of))
    counts = 3 * np.bincount(np.arange(rows) % len(CLASSES), minlength=len(CLASSES))

    def found(total: Vector) -> tuple[int, int]:
        grid = from_vector(total, agreement.layout, agreement.fraction_bits)
        upload = Upload.of(replace(grid, counts=torch.from_numpy(counts)))
        rows_found = recover_rows(upload)
        return 0 if rows_found is None else len(rows_found), len(single_rows(upload))

    assert found(exact) == (3 * rows, 0)
    assert found(noisy) == (0, 0)


# Shares, and who may be missing.


@given(sites=st.integers(2, 60), data=st.data(), epsilon=st.sampled_from([0.5, 1.0, 8.0]))
@examples(40)
def test_the_shares_of_the_honest_survivors_of_any_allowed_dropouts_reach_sigma(
    sites: int, data: st.DataObject, epsilon: float
) -> None:
    dishonest = data.draw(st.none() | st.integers(0, sites - 1))
    threshold = data.draw(st.integers(max(2, least_threshold(sites, dishonest)), sites))
    names = tuple(f"s{number}" for number in range(sites))
    agreement = agreed(
        sites=names, quorum=threshold, threshold=threshold, dishonest_sites=dishonest, epsilon=epsilon
    )  # fmt: skip
    mechanism = mechanism_of(agreement)
    needed = mechanism.sigma * 2.0**mechanism.fraction_bits
    known = colluders(sites, dishonest)
    share, beside = mechanism.share
    for survivors in range(threshold, sites + 1):
        honest = survivors - known
        assert honest * share**2 >= needed**2
        assert 2 * honest * beside**2 >= needed**2
        of_these = mechanism.of_survivors(survivors)
        assert of_these.share == mechanism.share
        assert of_these.honest == mechanism.honest
        assert of_these.total_sigma == pytest.approx(share * math.sqrt(survivors) * 2.0**-mechanism.fraction_bits)
        assert of_these.sentence("site") == mechanism.sentence("site") or known >= survivors - 1
    # and with one honest survivor less they would not: no noise is wasted
    assert (threshold - known - 1) * share**2 < needed**2
    assert mechanism.spent(agreement.layout.size) <= epsilon
    assert share >= 1 << 20  # no low bit stays exact


def test_a_sum_without_a_site_that_dropped_out_is_that_of_the_others(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path, quorum=3, **PRIVATE)
    trial.fault("silent", "c", "mask")
    server = trial.run()
    three = [site for site in FOUR if site != "c"]
    parts = [sent_by(trial, site) for site in three]
    total = from_vector(sum(parts[1:], parts[0]), trial.agreement.layout, trial.bits)
    assert torch.equal(server.total().gram, total.gram)
    privacy, all_of_them = server.results["privacy"], mechanism_of(trial.agreement)
    assert (privacy["clients"], privacy["sigma"]) == (3, all_of_them.sigma)
    assert server.federation().beta == pytest.approx(all_of_them.edge * math.sqrt(3 / 4))


def test_plain_uploads_have_all_of_the_noise(tmp_path: Path) -> None:
    agreement = agreed(secure_sum=False, local_noise=True)
    mechanism = mechanism_of(agreement)
    assert mechanism.honest == 1
    assert mechanism.share[0] >= mechanism.sigma * 2.0**mechanism.fraction_bits
    assert mechanism.total_sigma == pytest.approx(2.0 * mechanism.sigma, rel=1e-5)
    assert "from the server and all other sites" in mechanism.sentence("site")
    trial = Trial.make(tmp_path, few_rows=False, epsilon=8.0, clip=4.0, secure_sum=False, local_noise=True)
    for site in FOUR:
        trial.policy(site, "require_secure_sum = false")
    total = trial.run().total()
    parts = [sent_by(trial, site) for site in FOUR]
    assert torch.equal(total.gram, from_vector(sum(parts[1:], parts[0]), trial.agreement.layout, trial.bits).gram)


# One payment, one answer.


def spent() -> list[dict[str, Any]]:
    with SumLedger.open() as sums:
        return [line for line in sums.lines if line["event"] == "spent"]


def test_the_same_question_has_the_same_noise_and_is_paid_for_once(tmp_path: Path) -> None:
    """A session that is broken off, one after it, and a folder from a copy: one release."""
    table = Table(tmp_path, **PRIVATE)
    copy = tmp_path / "copy"
    shutil.copytree(table.trial.site_folder("a"), copy)
    table.until(RoundStep.KEYS)
    first = SiteState(table.trial.site_folder("a")).vector()
    assert spent() == []  # nothing has left
    table._share()
    table._mask()
    assert len(spent()) == 4
    table.begin(b"t" * 32)
    table.until(RoundStep.KEYS)
    again = SiteState(table.trial.site_folder("a")).vector()
    table._share()
    table._mask()
    assert len(spent()) == 4
    shutil.rmtree(table.trial.site_folder("a"))
    shutil.copytree(copy, table.trial.site_folder("a"))
    table.begin(b"u" * 32)
    table.until(RoundStep.KEYS)
    restored = SiteState(table.trial.site_folder("a")).vector()
    assert first is not None
    assert again is not None
    assert restored is not None
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, restored)


def test_other_rows_or_another_agreement_have_other_noise(tmp_path: Path, another_user: Callable[[], None]) -> None:
    """Two answers with the same noise would tell the difference of the rows, exactly."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    trial = Trial.make(tmp_path / "one", **PRIVATE)

    def noise(of: Trial, site: str = "a") -> Any:
        return (sent_by(of, site) - exact_of(of, site)).view(np.int64)[: -len(CLASSES)]

    found = [noise(trial), noise(trial, "b"), noise(Trial.make(tmp_path / "two", seed=1, **PRIVATE))]
    features, _ = rows_of("a")
    write_rows(trial.data("a"), "a", features=np.concatenate((features[:1] * 1.001, features[1:])))
    found.append(noise(trial))
    another_user()
    write_rows(trial.data("a"), "a")
    found.append(noise(trial))
    for i, one in enumerate(found):
        for other in found[:i]:
            assert (one != other).mean() > 0.9


def test_a_budget_that_is_spent_is_refused_with_what_is_left(tmp_path: Path) -> None:
    """Two federations of the same rows: the second would be too much, and is refused before anything is sent."""
    settings = {**PRIVATE, "epsilon": 6.0}
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    Trial.make(tmp_path / "first", **settings).run()
    second = Trial.make(tmp_path / "second", deadline=61.0, **settings)
    before = len(spent())
    with pytest.raises(RoundError):
        second.run()
    assert len(spent()) == before
    log = second.log("a")
    agreement = second.agreement
    rho = mechanism_of(agreement).rho(agreement.layout.size)
    left = epsilon_of(rho_of(8.0, 1e-5) - rho, 1e-5)
    assert "refused (budget): these rows may tell ε = 8 at δ = 1e-05 (max_epsilon and max_delta in site.toml)" in log
    assert f"what is left is ε = {left:.3g}: nothing was sent" in log
    site = open_site(second.site_folder("a"))
    rows = SiteRows.read(second.data("a"), "a", agreement, site.policy)
    with pytest.raises(SiteRefusalError, match="what is left is"):
        require_sums(site, rows, None)
    for site_name in FOUR:
        second.policy(site_name, "max_epsilon = 12.0")
    second.again()
    second.run()
    assert len(spent()) == before + 4
    assert "with this sum these rows have spent ε = " in second.log("a")


def test_two_federations_at_once_spend_from_one_budget(tmp_path: Path) -> None:
    """Both began while there was enough; the second finds it spent before its numbers leave, and sends nothing."""
    tables = []
    for name, deadline in (("first", 60.0), ("second", 61.0)):
        (tmp_path / name).mkdir()
        tables.append(Table(tmp_path / name, deadline=deadline, **{**PRIVATE, "epsilon": 6.0}))
        tables[-1].until(RoundStep.SHARE)
    assert spent() == []
    first, second = tables
    first._mask()
    assert len(spent()) == 4
    for site in FOUR:
        assert second.code(site, RoundStep.MASK, second.dealt(site)) is SiteCode.BUDGET
    assert len(spent()) == 4


def test_rows_that_change_in_mid_session_are_refused(tmp_path: Path) -> None:
    """Else they would be paid for as those that were here when it began, and cost nothing in the next federation."""
    table = Table(tmp_path, **PRIVATE)
    table.until(RoundStep.HELLO)
    features, _ = rows_of("a")
    write_rows(table.trial.data("a"), "a", features=features + 1.0)
    assert table.code("a", RoundStep.KEYS) is SiteCode.DATA
    assert "the training rows have changed since this session began" in table.trial.log("a")
    write_rows(table.trial.data("a"), "a")
    table.begin(b"t" * 32)
    table.until(RoundStep.MASK)
    assert len(spent()) == 4


def test_nothing_but_the_noisy_numbers_tells_of_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, another_user: Callable[[], None]
) -> None:
    """Of rows whose noisy numbers are the same, every answer of a site, and all that the server keeps, is the same."""
    encoded = Mechanism.encoded
    fixed: dict[str, Any] = {}

    def as_before(self: Mechanism, public: PublicMap, features: Any, labels: Any, classes: int, client: str) -> Any:
        found = encoded(self, public, features, labels, classes, client)
        return fixed.setdefault(client, found)

    def noise_of(site: Any, *_: object) -> tuple[str, Any]:
        return site.name, derived(hashlib.sha256(site.name.encode()).digest())

    def without_keys(value: Any) -> Any:
        """Keys, sealed shares and signatures are drawn anew in each session, and sites answer in any order."""
        if isinstance(value, list):
            return sorted(without_keys(each) for each in value)
        return "bytes" if isinstance(value, bytes) else value

    monkeypatch.setattr(Mechanism, "encoded", as_before)
    monkeypatch.setattr("fedhip.federation.site.inputs.noise_of", noise_of)
    answers: list[Any] = []
    handle = Site.handle

    def seen(self: Site, question: Any, node: int) -> Any:
        answer = handle(self, question, node)
        body = {name: without_keys(value) for name, value in answer.body.items()}
        arrays = {name: (array.dtype, array.shape) for name, array in answer.arrays.items()}
        answers.append((node, question.envelope.step, answer.code, sorted(body.items()), arrays))
        return answer

    monkeypatch.setattr(Site, "handle", seen)
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        trial = Trial.make(tmp_path / name, **PRIVATE)
        for site in FOUR:
            trial.policy(site, "tell_accuracy = true")
        if name == "two":
            another_user()
            # Other rows, more of them, and of fewer classes.
            features, labels = rows_of("b", 40)
            write_rows(trial.data("b"), "b", features=features[::-1] * 3.0, labels=labels % 2)
        answers.clear()
        server = trial.run()
        results = dict(server.results)
        for changing in ("created", "seconds", "timing", "started", "finished", "run", "session"):
            results.pop(changing, None)
        found.append((sorted(map(repr, answers)), results, server.total().digest(), server.federation().common))
    assert found[0][0] == found[1][0]
    assert found[0][1] == found[1][1]
    assert found[0][2] == found[1][2]
    assert torch.equal(found[0][3].weights, found[1][3].weights)


def test_a_row_that_was_paid_for_is_known_in_however_small_a_part_of_many(tmp_path: Path) -> None:
    """Of 10,000 rows any single one, which a sketch of few of the smallest hashes would not have."""
    trial = Trial.make(tmp_path, **PRIVATE)
    rng, site = np.random.default_rng(0), open_site(trial.site_folder("a"))
    features, labels = rng.normal(size=(10_000, WIDTH)).astype(np.float32), np.arange(10_000) % len(CLASSES)

    def known(rows: slice) -> Fingerprint:
        split, class_names = np.zeros(len(labels[rows]), np.int8), np.array(CLASSES)
        np.savez(trial.data("a"), features=features[rows], labels=labels[rows], split=split, class_names=class_names)
        found = SiteRows.read(trial.data("a"), "a", trial.agreement, site.policy)
        with SumLedger.open() as sums:
            return sums.fingerprint(found, CLASSES)

    everything = known(slice(None))
    for row in range(12):
        assert known(slice(row, row + 1)).overlaps(everything)


def test_what_costs_add_up_to_is_that_of_the_accountant(tmp_path: Path) -> None:
    Trial.make(tmp_path, **PRIVATE).run()
    lines = spent()
    assert {line["site"] for line in lines} == set(FOUR)
    for line in lines:
        assert line["rho"] == pytest.approx(rho_of(8.0, 1e-5), rel=1e-4)
        assert epsilon_of(line["rho"], 1e-5) <= 8.0


# One row, and no more.


def test_a_number_that_no_model_could_be_made_of_is_refused_before_anything_leaves(tmp_path: Path) -> None:
    """The sum would be clipped; the site's own model is not, and the server would see that this site has none."""
    trial = Trial.make(tmp_path, **PRIVATE)
    X = rows_of("a")[0].copy()
    X[3:6, 1] = 1e200
    write_rows(trial.data("a"), "a", features=X)
    with pytest.raises(SiteRefusalError, match=r"a feature of column 1 is as large as 1e\+200 here") as refused:
        sent_by(trial, "a")
    assert refused.value.code is SiteCode.OVERFLOW


def test_a_row_more_changes_what_a_site_gives_by_no_more_than_itself(tmp_path: Path) -> None:
    """Neither the division in training and test rows nor classes with few rows make it bring others along."""
    trial, sensitivity = Trial.make(tmp_path, **PRIVATE), mechanism_of(agreed()).sensitivity
    rng = np.random.default_rng(3)
    features, labels = rng.normal(size=(60, WIDTH)), rng.integers(0, 3, 60)
    labels[:2] = 3  # a class of two rows, and then of one
    vectors, divided = [], []
    for rows in (slice(0, 60), slice(1, 60), slice(0, 59)):
        write_rows(trial.data("a"), "a", features=features[rows], labels=labels[rows])
        vectors.append(exact_of(trial, "a").view(np.int64))
        divided.append(inputs_of(trial, "a").rows.split)
    np.testing.assert_array_equal(divided[0][1:], divided[1])
    np.testing.assert_array_equal(divided[0][:-1], divided[2])
    assert 0 < divided[0].sum() < 30
    assert set(np.unique(divided[0])) == {0, 1}
    layout, bits = trial.agreement.layout, trial.bits
    for other in vectors[1:]:
        change = from_vector((vectors[0] - other).view(np.uint64), layout, bits)
        square = sum(int(x) ** 2 for part in (change.gram, change.cross) for x in part.flatten().tolist())
        assert math.sqrt(square) * 2.0**-bits <= sensitivity


def test_of_a_group_so_many_rows_count_as_are_agreed_on(tmp_path: Path) -> None:
    trial = Trial.make(tmp_path, unit="group", unit_rows=2, **PRIVATE)
    _, labels = rows_of("a")
    with pytest.raises(SiteRefusalError, match="the unit is a group, and these rows have none"):
        sent_by(trial, "a")
    groups = np.array([f"patient {i // 5}" for i in range(len(labels))])
    split = np.zeros(len(labels), np.int8)
    write_rows(trial.data("a"), "a", groups=groups, split=split)
    noisy = sent_by(trial, "a")
    mechanism, layout = mechanism_of(trial.agreement), trial.agreement.layout
    rows = layout.cross(noisy)[-1].sum() * 2.0**-trial.bits / 0.5
    deviation = mechanism.share[0] * 2.0**-trial.bits * math.sqrt(len(CLASSES)) / 0.5
    assert abs(rows - 2 * 3) < 6 * deviation
    assert "all training rows of a group together (at most 2 of them are used)" in mechanism.sentence("site")


# Words, and what is refused.


def test_the_guarantee_is_in_the_agreement_and_told_before_anybody_accepts() -> None:
    agreement = agreed()
    sentence = mechanism_of(agreement).sentence("site")
    assert sentence.startswith(
        "(8, 1e-05)-differential privacy protects every training row from the server and any one"
    )
    assert f"# {sentence}" in agreement.to_text().splitlines()
    assert Agreement.from_text(agreement.to_text(), "again") == agreement
    words = in_words(agreement, Policy(), "a")
    assert f"privacy: {sentence}" in words
    assert any(line.startswith("noise: each site adds 1/2 of the noise's variance") for line in words)
    assert "sums: 1 (the statistics)" in words
    assert (
        agreed(epsilon=None, clip=None).digest() == draft(name="x", sites=FOUR, classes=CLASSES, width=WIDTH).digest()
    )


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"epsilon": 0.0}, "epsilon is 0.0; give a"),
        ({"epsilon": -1.0}, "epsilon is -1.0; give a"),
        ({"epsilon": 101.0}, "epsilon is 101, which protects nobody; give at most 100"),
        ({"delta": 0.0}, "delta is 0.0; give a"),
        ({"delta": 1e-5, "max_rows": 25_000}, "delta is 1e-05, and there are 100,000 rows to protect"),
        ({"delta": 0.5}, "delta is 0.5, and there are 4 rows to protect"),
        ({"epsilon": 1.0, "max_rows": 5}, r"too small for epsilon = 1: .* 20 rows at most .* with that many rows it"),
        ({"epsilon": 1e-4}, "epsilon is 0.0001: noise of .* rows would bury"),
        ({"secure_sum": False}, r"there is no secure sum: .*\(--local-noise: the sum's is then 2 times as large"),
        ({"local_noise": True}, "local_noise is of sums without masks"),
        ({"clip": None}, "nothing public is known of these features, and a bound from private rows"),
        ({"clip": 4.0, "public": "fedhip-vit"}, "give --public or --clip, not both"),
        ({"clip": None, "public": "rows.npz"}, "public is 'rows.npz', which the sites have not"),
        ({"clip": None, "public": "fedhip-vit"}, "features are 6 wide, and what is public of them .* is of 1280"),
        ({"unit": "group"}, "the unit is a group, which may have any number of rows"),
        ({"unit_rows": 3}, "unit_rows is 3, and the unit is a row"),
        ({"fraction_bits": 20}, "fraction_bits is given, and with epsilon it follows from the noise"),
        ({"epsilon": None, "clip": 3.0}, "clip is of differential privacy; give epsilon too"),
        ({"epsilon": None, "clip": None, "local_noise": True}, "local_noise is of differential privacy"),
    ],
)  # fmt: skip
def test_what_cannot_be_promised_is_refused_in_one_line(given: dict[str, Any], line: str) -> None:
    with pytest.raises(SetupError, match=line) as told:
        agreed(**given)
    assert len(str(told.value).splitlines()) == 1


def test_a_site_that_would_clip_otherwise_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agreement that names another clipping than follows from it here: another version made it."""
    trial = Trial.make(tmp_path, **PRIVATE)
    honest = PublicMap.of_length

    def other(width: int, clip: float) -> PublicMap:
        return honest(width, 2.0 * clip)

    monkeypatch.setattr(PublicMap, "of_length", other)
    with pytest.raises(RoundError):
        trial.run()
    assert "refused (clipping): rows would be clipped here by a declared length of 8" in trial.log("a")
    assert spent() == []


def test_a_federation_whose_rows_the_noise_buries_says_how_many_would_do(tmp_path: Path) -> None:
    """48 rows at ε = 0.3: refused by the noisy count; no site gets the sum, and the server writes no model."""
    trial = Trial.make(tmp_path, **{**PRIVATE, "epsilon": 0.3})
    with pytest.raises(InputError, match=r"the federation is too small for epsilon = 0\.3"):
        trial.run()
    assert not trial.result.exists()


def test_a_site_may_require_noise() -> None:
    with pytest.raises(PolicyError, match="this site requires differential privacy"):
        Policy(require_noise=True).require_agreement(agreed(epsilon=None, clip=None))
    Policy(require_noise=True).require_agreement(agreed())


def test_a_second_sum_of_the_same_noise_cannot_be_allowed() -> None:
    """Its difference from the first would be a site's numbers with its share of the noise, and not with all of it."""
    with pytest.raises(PolicyError, match="set allow_other_sums = false"):
        Policy(allow_other_sums=True).require_agreement(agreed())
    Policy(allow_other_sums=True).require_agreement(agreed(epsilon=None, clip=None))


def test_a_site_that_fears_more_sites_than_the_noise_holds_against_refuses() -> None:
    agreement = agreed(sites=EIGHT, dishonest_sites=1, quorum=8, threshold=8)
    Policy(dishonest_sites=1).require_agreement(agreement)
    with pytest.raises(PolicyError, match="noise holds against a server with 1 other sites, and this site's policy"):
        Policy(dishonest_sites=4).require_agreement(agreement)


def test_sums_that_clipped_rows_cannot_have_are_refused() -> None:
    agreement = agreed(max_rows=1000)
    layout = agreement.layout
    fine = np.zeros(layout.size, np.uint64)
    check_noisy_part(fine, agreement)
    check_noisy_sum(fine, agreement)
    for place, value, why in (
        (0, 1 << 40, "larger than those of clipped rows"),
        (0, -(1 << 28), "squares are further below 0"),
        (layout.size - 1, 1, "there are counts of rows beside the noise"),
    ):
        wrong = fine.copy()
        wrong.view(np.int64)[place] = value
        for check in (check_noisy_part, check_noisy_sum):
            with pytest.raises(StatisticsError, match=why):
                check(wrong, agreement)


def test_tables_are_clipped_by_agreed_ranges_and_need_no_other_sum() -> None:
    columns = (Column("age", "number", low=20.0, high=90.0), Column("sex", "category", ("f", "m")))
    table = Description(columns, labels=("class",))
    agreement = agreed(clip=None, table=table, width=table.width, columns=None)
    assert agreement.open_fills == ()
    assert agreement.table is not None
    assert agreement.table.columns[0].fill == 55.0
    assert public_of(agreement).source == "the ranges agreed in columns.toml"
    open_range = Description((Column("age", "number"), columns[1]), labels=("class",))
    with pytest.raises(SetupError, match="column 'age' has no range"):
        agreed(clip=None, table=open_range, width=table.width)


def test_init_takes_epsilon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sites = [word for site in EIGHT for word in ("--site", site)]
    common = ["federation", "init", str(tmp_path / "fed"), "--name", "x", *sites, "--classes", "a,b", "--width", "9"]
    assert main([*common, "--epsilon", "1", "--clip", "3", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    agreement = Agreement.read(tmp_path / "fed" / "federation.toml")
    assert (agreement.epsilon, agreement.delta, agreement.unit) == (1.0, 1e-5, "row")
    assert said["privacy"] == mechanism_of(agreement).sentence("site")
    assert main(["federation", "init", str(tmp_path / "two"), *common[3:], "--epsilon", "1", "--clip", "3"]) == 0
    assert "(1, 1e-05)-differential privacy protects every training row" in capsys.readouterr().out
    assert main(["federation", "init", str(tmp_path / "three"), *common[3:], "--delta", "1e-6"]) != 0
    assert "delta is of differential privacy" in capsys.readouterr().err
