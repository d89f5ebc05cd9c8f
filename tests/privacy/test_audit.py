"""The attacks against the true rows: what they say was recovered was, and what they say was not was not."""

from __future__ import annotations

import numpy as np
import pytest

from fedhip.core import Statistics, personalize, solve_global
from fedhip.core.exact.fixedpoint import GridStatistics, fraction_bits_for
from fedhip.errors import InputError
from fedhip.privacy import Audit, AuditedSite, SitesInSum, audit_site, mechanism
from fedhip.privacy.attacks import Upload, recover_rows, share_inside, single_rows, trace_of_model
from fedhip.privacy.audit import Noise
from fedhip.privacy.page import recovered_rows, render_audit
from fedhip.privacy.public import PublicMap
from tests.core.problems import Array

WIDTH = 48
NAMES = ("ash", "birch", "cedar", "doum")


def site(labels: list[int], width: int = WIDTH, seed: int = 0, held_out: int = 4) -> AuditedSite:
    generator = np.random.default_rng(seed)
    features = np.maximum(generator.normal(0.3, 1.0, (len(labels) + held_out, width)), 0).astype(np.float32)
    names = tuple(f"{i}.png" for i in range(len(labels)))
    return AuditedSite("here", features[: len(labels)], np.array(labels), NAMES, names, features[len(labels) :])


def upload(of: AuditedSite, bits: int = 32) -> tuple[Upload, Array]:
    grid = GridStatistics.from_data(of.features, of.labels, len(of.class_names), fraction_bits=bits)
    return Upload.of(grid), np.rint(of.features.astype(np.float64) * 2.0 ** (bits // 2)).astype(np.int64)


def severities(found: Audit, about: str) -> list[str]:
    return [finding.severity for finding in found.findings if finding.about == about]


@pytest.mark.parametrize("bits", [28, 31, 40])
def test_the_only_row_of_a_class_is_read_from_cross(bits: int) -> None:
    here = site([0, 0, 0, 1, 2, 2])
    attacked, steps = upload(here, bits)
    found = single_rows(attacked)
    assert found.labels.tolist() == [1]
    np.testing.assert_array_equal(found.rows, steps[3:4])
    assert attacked.step * found.rows[0] == pytest.approx(here.features[3], abs=2.0 ** -(bits // 2))


@pytest.mark.parametrize("bits", [28, 31, 40])
def test_fewer_rows_than_features_come_back_with_sign_and_class(bits: int) -> None:
    here = site([0, 0, 0, 1, 2, 2, 2, 2, 3, 3])
    here = AuditedSite(here.name, here.features - 0.6, here.labels, NAMES, here.row_names, here.held_out)
    attacked, steps = upload(here, bits)
    found = recover_rows(attacked)
    assert found is not None
    assert sorted(zip(found.labels.tolist(), found.rows.tolist(), strict=True)) == sorted(
        zip(here.labels.tolist(), steps.tolist(), strict=True)
    )


def test_a_row_that_is_in_two_classes_comes_back_in_both() -> None:
    here = site([0, 0, 1, 1, 2, 2])
    features = here.features[[0, 1, 0, 3, 4, 5]]
    attacked, steps = upload(AuditedSite("here", features, here.labels, NAMES, here.row_names, here.held_out))
    found = recover_rows(attacked)
    assert found is not None
    assert sorted(zip(found.labels.tolist(), found.rows.tolist(), strict=True)) == sorted(
        zip(here.labels.tolist(), steps.tolist(), strict=True)
    )


def test_a_row_of_even_steps_is_not_taken_for_four_halves() -> None:
    here = site([0, 0, 1, 1, 2, 2])
    features = here.features.copy()
    features[2] = 2 * np.rint(features[2] * 8) / 8
    attacked, steps = upload(AuditedSite("here", features, here.labels, NAMES, here.row_names, here.held_out))
    found = recover_rows(attacked)
    assert found is not None
    assert sorted(zip(found.labels.tolist(), found.rows.tolist(), strict=True)) == sorted(
        zip(here.labels.tolist(), steps.tolist(), strict=True)
    )


def test_more_rows_than_features_do_not_come_back() -> None:
    attacked, _ = upload(site([0] * 20 + [1] * 20 + [2] * 20, width=24))
    assert recover_rows(attacked) is None


def test_a_small_site_is_told_everything() -> None:
    found = audit_site(site([0, 0, 0, 0, 1, 2, 2, 2, 3, 3]), SitesInSum(3, 8))
    assert [row["row"] for row in found.plain["single_rows"]] == [4]
    assert found.plain["single_rows"][0]["name"] == "4.png"
    assert len(found.plain["lattice"]["recovered"]) == 10
    assert {entry["class"]: entry["rows"] for entry in found.plain["few_rows"]} == {"cedar": 3, "doum": 2}
    assert found.plain["gram_rank"] == {"rank": 10, "features": WIDTH, "rows": 10, "tells_rows": True}
    # 4 of the 8 others are the looker's own: 14 rows of 48 features are left, and all ten are among them.
    assert found.total["seen_by_another_site"] == {"rows": 14, "is_plain_upload": False}
    assert len(found.total["lattice"]["recovered"]) == 10
    assert found.total["difference_of_two_sums_is_upload"] is True
    assert severities(found, "secure sum")[0] == "critical"
    assert len(recovered_rows(found)) == 10
    assert found.to_dict()["worst"] == "critical"


def test_a_large_site_in_a_large_cohort_is_told_what_is_left() -> None:
    found = audit_site(site([0] * 60 + [1] * 60 + [2] * 50 + [3] * 40, width=16, held_out=40), SitesInSum(6, 1000))
    assert found.plain["single_rows"] == []
    assert found.plain["few_rows"] == []
    assert found.plain["lattice"]["tried"] is False
    assert set(severities(found, "plain upload")) == {"low"}
    assert "critical" not in severities(found, "secure sum")
    assert found.total["rows"] == 1210
    assert found.total["with_one_honest_other"] == {"colluding": 4, "rows": 410}


def test_with_two_sites_the_other_has_the_upload() -> None:
    found = audit_site(site([0, 0, 1, 1, 2, 2], width=4), SitesInSum(2, 50))
    assert found.total["seen_by_another_site"]["is_plain_upload"] is True
    assert severities(found, "secure sum")[0] == "critical"


def test_many_rows_of_others_are_counted_and_not_made() -> None:
    found = audit_site(site([0, 0, 1, 1], width=6), SitesInSum(3, 10**7))
    assert found.total["rows"] == 10**7 + 4
    assert found.total["stand_ins"] <= 48


def test_rows_are_only_called_recovered_if_they_are_the_true_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step off in one feature is not the row."""
    import fedhip.privacy.audit as module

    def off_by_one(attacked: Upload) -> object:
        found = single_rows(attacked)
        found.rows[0, 0] += 1
        return found

    here = site([0, 0, 0, 1, 2])
    assert len(audit_site(here, SitesInSum(3, 8)).plain["single_rows"]) == 2
    monkeypatch.setattr(module, "single_rows", off_by_one)
    assert len(audit_site(here, SitesInSum(3, 8)).plain["single_rows"]) == 1


def test_out_of_time_is_said_and_is_no_all_clear() -> None:
    ticks = iter(range(10**6))
    here = site([0] * 10 + [1] * 10)
    found = audit_site(here, SitesInSum(3, 2000), seconds=2, clock=lambda: float(next(ticks)))
    assert found.plain["lattice"]["tried"] is True
    assert found.plain["lattice"]["recovered"] == []
    finding = next(f for f in found.findings if "determine every single row" in f.finding)
    assert finding.severity == "high"
    assert "no proof" in finding.finding


def test_a_model_is_made_of_combinations_of_its_clients_rows() -> None:
    """(A + βI)(P − G) = α Fᵀ(Y − F P), with fewer rows than classes: the span is that of the rows."""
    generator = np.random.default_rng(0)
    F, y = generator.normal(size=(3, 20)), np.array([0, 1, 2])
    others, labels = generator.normal(size=(60, 20)), generator.integers(0, 5, 60)
    total = Statistics.from_data(np.concatenate((F, others)), np.concatenate((y, labels)), 5)
    G, P = solve_global(total, 1.0), personalize(total, F, y, alpha=20.0, beta=1.0)
    span = trace_of_model(total, 1.0, G, P)
    assert span.shape == (20, 3)
    assert share_inside(span, F) == pytest.approx(1.0, abs=1e-9)
    assert share_inside(span, others).max() < 0.9
    moved = total.gram @ (P - G) + (P - G)
    np.testing.assert_allclose(moved, 20.0 * F.T @ (np.eye(5)[y] - F @ P.numpy()), atol=1e-9)


def test_a_model_of_few_rows_tells_who_was_trained_on() -> None:
    found = audit_site(site([0, 1, 2, 3], width=40, held_out=30), SitesInSum(4, 300))
    assert found.model["own_rows_inside"] == pytest.approx(1.0, abs=1e-4)
    assert found.model["told_apart"] == 1.0
    assert severities(found, "published model") == ["high"]


@pytest.mark.parametrize(("features", "labels"), [(np.zeros((3, 5)), [0, 0, 1]), (np.ones((1, 1)), [0])])
def test_degenerate_rows_are_audited_too(features: Array, labels: list[int]) -> None:
    names = tuple(map(str, range(len(labels))))
    found = audit_site(AuditedSite("odd", features, np.array(labels), NAMES, names, features[:0]), SitesInSum(3, 6))
    assert found.findings
    assert found.model["told_apart"] is None


def test_cohorts_and_sites_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="--sites 2 or more"):
        SitesInSum(1, 5)
    with pytest.raises(InputError, match="--rows-of-others 2 is too few"):
        SitesInSum(4, 2)
    with pytest.raises(InputError, match="no rows to train on"):
        site([])


def test_the_page_escapes_names_and_shows_pictures() -> None:
    here = site([0, 0, 1, 2])
    names = ("<script>alert(1)</script>", "b", "c", "d")
    here = AuditedSite("<b>site</b>", here.features, here.labels, ("<i>", "x", "y", "z"), names, here.held_out)
    page = render_audit(audit_site(here, SitesInSum(3, 8)), {0: "data:image/png;base64,AAAA"})
    assert "<script" not in page
    assert "<b>site" not in page
    assert "&lt;script&gt;" in page
    assert 'src="data:image/png;base64,AAAA"' in page
    assert "http://" not in page
    assert "https://" not in page


def test_the_grid_is_the_one_that_a_run_would_take() -> None:
    here = site([0, 0, 1, 1])
    assert audit_site(here, SitesInSum(3, 8)).fraction_bits == fraction_bits_for(float(np.abs(here.features).max()))
    assert audit_site(here, SitesInSum(3, 8), fraction_bits=20).fraction_bits == 20


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_under_noise_no_row_is_found_where_without_it_all_are(monkeypatch: pytest.MonkeyPatch, epsilon: float) -> None:
    noise = Noise(mechanism.Mechanism(epsilon, 1e-5, "row", 1, WIDTH, 4), PublicMap.of_length(WIDTH, 9.0))

    def found() -> Audit:
        return audit_site(site([0, 1, 1, 2, 2, 2, 3, 3]), SitesInSum(4, 12), noise=noise)

    audit = found()
    assert [len(part["lattice"]["recovered"]) for part in (audit.plain, audit.total)] == [0, 0]
    assert audit.plain["single_rows"] == []
    assert severities(audit, "noisy sum") == ["low", "low"]
    assert severities(audit, "noisy upload") == ["low"]
    assert any(noise.mechanism.guarantee in finding.finding for finding in audit.findings)
    # The same, but for the noise: the attacks do look.
    monkeypatch.setattr(mechanism, "discrete_gaussian", lambda _, size, __: np.zeros(size, np.int64))
    audit = found()
    assert [len(part["lattice"]["recovered"]) for part in (audit.plain, audit.total)] == [8, 8]
    assert severities(audit, "noisy sum") == ["critical", "low"]
