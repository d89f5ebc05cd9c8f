"""What is chosen among: members of one sum, and candidates made of them, by name (`fedhip.heads.auto`)."""

from __future__ import annotations

from collections.abc import Sequence

RIDGE, GLOBAL, LDA, ALONE, MAJORITY = "ridge", "global", "lda", "alone", "majority"
#: What the names of members begin with that are of a lift and of the features beside it.
WIDE = "wide_"
_SINGLES = ((RIDGE,), (GLOBAL,), (LDA,), (ALONE,))
_AVERAGES = (
    (RIDGE, LDA), (GLOBAL, LDA), (RIDGE, ALONE), (GLOBAL, ALONE), (LDA, ALONE),
    (RIDGE, LDA, ALONE), (GLOBAL, LDA, ALONE),
)  # fmt: skip
#: The candidates on features as they are, from the simplest: of equals the first is taken.
CANDIDATES: tuple[tuple[str, ...], ...] = (*_SINGLES, *_AVERAGES, (MAJORITY,))
#: With a lift beside the features: the same, and each once more with all its members on both.
WIDE_CANDIDATES: tuple[tuple[str, ...], ...] = (
    *CANDIDATES[:-1],
    *((*members, *(WIDE + name for name in members)) for members in CANDIDATES[:-1]),
    (MAJORITY,),
)
_BOTH = (RIDGE, LDA, WIDE + RIDGE, WIDE + LDA)
_ANYBODYS = (GLOBAL, LDA, WIDE + GLOBAL, WIDE + LDA)


def name_of(candidate: int, candidates: Sequence[tuple[str, ...]] = CANDIDATES) -> str:
    """What a candidate is called in results.json."""
    return "+".join(candidates[candidate])


def is_wide(members: Sequence[str]) -> bool:
    """Whether a candidate has members on a lift."""
    return any(name.startswith(WIDE) for name in members)


def presumed(candidates: Sequence[tuple[str, ...]], among: Sequence[int]) -> int:
    """What everybody takes unless rows speak against it: the ridge and LDA together, on a lift too where there is one.

    Without it: the global ridge and LDA; else the first of `among`.
    """
    known = {candidates[at]: at for at in among}
    for members in (_BOTH, _BOTH[:2], _ANYBODYS, _ANYBODYS[:2]):
        if members in known:
            return known[members]
    return among[0]


def with_prior(candidates: Sequence[tuple[str, ...]]) -> list[int]:
    """The candidates to whose scores a prior can be added."""
    return [at for at, members in enumerate(candidates) if members != (MAJORITY,)]


def for_anybody(candidates: Sequence[tuple[str, ...]]) -> list[int]:
    """Those that a client without rows can have."""
    return [at for at, members in enumerate(candidates) if set(members) <= set(_ANYBODYS)]


def corners(candidates: Sequence[tuple[str, ...]]) -> list[int]:
    """Those that a client leaves everybody's for: what it could have by itself, or from the sum as it is."""
    return [at for at, members in enumerate(candidates) if members in ((RIDGE,), (GLOBAL,), (ALONE,), (MAJORITY,))]
