"""What is chosen among: members of one sum, and candidates made of them, by name (`fedhip.heads.auto`)."""

from __future__ import annotations

from collections.abc import Sequence

RIDGE, GLOBAL, LDA, ALONE, MAJORITY = "ridge", "global", "lda", "alone", "majority"
#: What the names of members begin with that are of a lift and of the features beside it.
WIDE = "wide_"
_SINGLES = ((RIDGE,), (GLOBAL,), (LDA,), (ALONE,))
_SHARED, _SUM, _ALL = (GLOBAL, LDA), (RIDGE, GLOBAL, LDA), (RIDGE, GLOBAL, LDA, ALONE)
#: The candidates on features as they are, from the simplest: of equals the first is taken. Averages hold one another:
#: what everybody has alike, all that the sum gives, and everything.
CANDIDATES: tuple[tuple[str, ...], ...] = (*_SINGLES, _SHARED, _SUM, _ALL, (MAJORITY,))
#: Those and what else runs and agreements of earlier versions hold.
KNOWN: tuple[tuple[str, ...], ...] = (
    *_SINGLES,
    (RIDGE, LDA), _SHARED, (RIDGE, ALONE), (GLOBAL, ALONE), (LDA, ALONE), (RIDGE, LDA, ALONE), (GLOBAL, LDA, ALONE),
    _SUM, _ALL,
    (MAJORITY,),
)  # fmt: skip


def widened(candidates: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """With a lift beside the features: the same, and each once more with all its members on both."""
    averages = [members for members in candidates if members != (MAJORITY,)]
    return (*averages, *map(_on_both, averages), *(members for members in candidates if members == (MAJORITY,)))


def _on_both(members: tuple[str, ...]) -> tuple[str, ...]:
    return (*members, *(WIDE + name for name in members))


WIDE_CANDIDATES = widened(CANDIDATES)
_ANYBODYS = _on_both(_SHARED)
#: What is presumed, the first that is there; the ridge and LDA in what earlier versions agreed on.
_PRESUMED = tuple(found for members in (_SUM, (RIDGE, LDA), _SHARED) for found in (_on_both(members), members))


def name_of(candidate: int, candidates: Sequence[tuple[str, ...]] = CANDIDATES) -> str:
    """What a candidate is called in results.json."""
    return "+".join(candidates[candidate])


def is_wide(members: Sequence[str]) -> bool:
    """Whether a candidate has members on a lift."""
    return any(name.startswith(WIDE) for name in members)


def presumed(candidates: Sequence[tuple[str, ...]], among: Sequence[int]) -> int:
    """What everybody takes unless rows speak against it: all that the sum gives, on a lift too where there is one.

    Without it: what everybody has alike of that; else the first of `among`.
    """
    known = {candidates[at]: at for at in among}
    return next((known[members] for members in _PRESUMED if members in known), among[0])


def with_prior(candidates: Sequence[tuple[str, ...]]) -> list[int]:
    """The candidates to whose scores a prior can be added."""
    return [at for at, members in enumerate(candidates) if members != (MAJORITY,)]


def for_anybody(candidates: Sequence[tuple[str, ...]]) -> list[int]:
    """Those that a client without rows can have."""
    return [at for at, members in enumerate(candidates) if set(members) <= set(_ANYBODYS)]


def corners(candidates: Sequence[tuple[str, ...]]) -> list[int]:
    """Those that a client leaves everybody's for: what it could have by itself, or from the sum as it is."""
    return [at for at, members in enumerate(candidates) if members in ((RIDGE,), (GLOBAL,), (ALONE,), (MAJORITY,))]
