"""What is chosen among: members of one sum, and candidates made of them, by name (`fedhip.heads.auto`)."""

from __future__ import annotations

from collections.abc import Sequence

RIDGE, GLOBAL, LDA, ALONE, MAJORITY = "ridge", "global", "lda", "alone", "majority"
#: The candidates, from the simplest: of equals the first is taken.
CANDIDATES: tuple[tuple[str, ...], ...] = (
    (RIDGE,), (GLOBAL,), (LDA,), (ALONE,),
    (RIDGE, LDA), (GLOBAL, LDA), (RIDGE, ALONE), (GLOBAL, ALONE), (LDA, ALONE),
    (RIDGE, LDA, ALONE), (GLOBAL, LDA, ALONE),
    (MAJORITY,),
)  # fmt: skip


def name_of(candidate: int, candidates: Sequence[tuple[str, ...]] = CANDIDATES) -> str:
    """What a candidate is called in results.json."""
    return "+".join(candidates[candidate])


def with_prior(candidates: Sequence[tuple[str, ...]]) -> list[int]:
    """The candidates to whose scores a prior can be added."""
    return [at for at, members in enumerate(candidates) if members != (MAJORITY,)]


def for_anybody(candidates: Sequence[tuple[str, ...]]) -> list[int]:
    """Those that a client without rows can have."""
    return [at for at, members in enumerate(candidates) if set(members) <= {GLOBAL, LDA}]


def corners(candidates: Sequence[tuple[str, ...]]) -> list[int]:
    """Those that a client leaves everybody's for: what it could have by itself, or from the sum as it is."""
    return [at for at, members in enumerate(candidates) if members in ((RIDGE,), (GLOBAL,), (ALONE,), (MAJORITY,))]
