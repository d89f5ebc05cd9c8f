"""The masked sum is the plain sum, whoever goes and whenever; what one site sends looks like noise."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhip.federation.secure_sum import Reason, SecureSumError
from fedhip.federation.secure_sum.masks import BLOCK
from fedhip.federation.secure_sum.shamir import weights_at_zero
from tests.drawing import examples
from tests.federation.secure_sum.party import STEPS, Party, Vector, total, vectors_of

EIGHT = "abcdefgh"

#: χ² with 255 degrees of freedom exceeds this in one of a thousand million uniform samples.
CHI_SQUARE_LIMIT = 410


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("number_gone", [0, 1, 3])
def test_masked_sum_equals_plain_sum_with_sites_that_go(step: str, number_gone: int) -> None:
    vectors = vectors_of(EIGHT)
    gone = dict.fromkeys("gbe"[:number_gone], step)
    summed = [vector for name, vector in vectors.items() if name not in gone or step in ("agree", "unmask")]
    result = Party(EIGHT, threshold=5).round(vectors, gone)
    assert np.array_equal(result, total(summed))


def test_signed_integers_on_the_grid_come_back() -> None:
    plain = {name: np.arange(-20, 20, dtype=np.int64) * (2**40 + k) for k, name in enumerate("abc")}
    result = Party("abc", threshold=2).round({name: vector.view(np.uint64) for name, vector in plain.items()})
    assert np.array_equal(result.view(np.int64), sum(plain.values()))


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
def test_lengths_around_the_block(length: int) -> None:
    vectors = vectors_of("abc", length)
    result = Party("abc", threshold=2).round(vectors, {"b": "mask"})
    assert np.array_equal(result, vectors["a"] + vectors["c"])


def test_a_vector_that_is_not_contiguous_and_the_caller_keeps_its_own() -> None:
    vectors = {name: vector[::2] for name, vector in vectors_of("ab", 100).items()}
    before = {name: vector.copy() for name, vector in vectors.items()}
    result = Party("ab", threshold=2).round(vectors)
    assert np.array_equal(result, total(before.values()))
    assert all(np.array_equal(vectors[name], before[name]) for name in vectors)


@examples(20)
@given(data=st.data())
def test_any_pattern_of_sites_that_go(data: st.DataObject) -> None:
    names = EIGHT[: data.draw(st.integers(2, 6))]
    threshold = data.draw(st.integers(len(names) // 2 + 1, len(names)))
    gone = data.draw(
        st.dictionaries(st.sampled_from(names), st.sampled_from(STEPS), max_size=len(names) - threshold + 1)
    )
    vectors = vectors_of(names, 5)
    left_at_the_end = len(names) - len(gone)
    dealt = [name for name in names if gone.get(name) not in ("keys", "share")]
    summed = [name for name in dealt if gone.get(name) != "mask"]
    party = Party(names, threshold)
    if left_at_the_end >= threshold:
        assert np.array_equal(party.round(vectors, gone), total(vectors[name] for name in summed))
        return
    with pytest.raises(SecureSumError) as caught:
        party.round(vectors, gone)
    assert caught.value.reason in (Reason.TOO_FEW, Reason.NOT_AGREED)
    assert caught.value.site is None


@pytest.mark.parametrize("gone", [{}, {"c": "mask"}])
def test_weights_are_found_once_for_all_dealers(gone: dict[str, str]) -> None:
    """At 200 sites to find them takes as long as all the rest of the server's last stage."""
    names = tuple("abcdefg")
    weights_at_zero.cache_clear()
    Party(names, 5).round(vectors_of(names, 5), gone)
    assert weights_at_zero.cache_info().misses == 1
    assert weights_at_zero.cache_info().hits == len(names) - 1


def chi_square_of_bytes(vector: Vector) -> float:
    counts = np.bincount(vector.view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    return float(((counts - expected) ** 2 / expected).sum())


def masked_by_each(vectors: dict[str, Vector]) -> dict[str, Vector]:
    party = Party(vectors, threshold=3)
    party.until_shares()
    return {name: party.mask(name, vectors[name], party.collector.dealt_to(name))[0] for name in vectors}


def test_what_one_site_sends_is_uniform_and_plain_statistics_are_not() -> None:
    generator = np.random.default_rng(0)
    plain: dict[str, Vector] = {name: generator.integers(0, 50, 30_000, dtype=np.uint64) * 2**20 for name in "abcd"}
    masked = masked_by_each(plain)
    for name in plain:
        assert chi_square_of_bytes(plain[name]) > 1e5
        assert chi_square_of_bytes(masked[name]) < CHI_SQUARE_LIMIT
    # Nor do some of them together tell anything: their own masks are left even if the others' cancel.
    for names in (part for size in (2, 3, 4) for part in combinations("abcd", size)):
        together = sum((masked[name] for name in names), start=np.zeros(30_000, dtype=np.uint64))
        assert chi_square_of_bytes(together) < CHI_SQUARE_LIMIT


def test_two_sessions_and_two_sites_have_unrelated_masks() -> None:
    nothing = {name: np.zeros(20_000, dtype=np.uint64) for name in "abcd"}
    first, second = masked_by_each(nothing), masked_by_each(nothing)
    for one, other in [(first["a"], second["a"]), (first["a"], first["b"]), (first["b"], first["c"])]:
        assert chi_square_of_bytes(one - other) < CHI_SQUARE_LIMIT
        assert chi_square_of_bytes(one + other) < CHI_SQUARE_LIMIT
        assert not np.isin(one, other).any()
