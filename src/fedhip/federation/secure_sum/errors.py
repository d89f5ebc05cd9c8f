"""What can go wrong in a secure sum: a fixed list, so that nothing of the data can travel in an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from fedhip.errors import FedHiPError


class Reason(StrEnum):
    """Every way to fail; the name is a code that may travel, the text is for people."""

    ROSTER = (
        "the roster needs 2 to 1024 plainly named sites, each with a P-384 key of its own; compare it with the others'"
    )
    THRESHOLD = "the threshold must be more than half of the roster and at most all of it; change the agreement"
    MINIMUM = "the smallest cohort must be at least 2; change the site's policy"
    SESSION = "a session is 32 bytes and its context at most 4096; start a new one"
    UNKNOWN_SITE = "the roster has no such site"
    STATE = "the stored state is damaged or of another version; start a new session"
    ORDER = "this step was done already, or it is not yet its turn; start a new session to do it again"
    MALFORMED = "the message is truncated, too long, or not of this version; leave the site out"
    OTHER_SESSION = (
        "the message belongs to another question, session, agreement, roster or threshold: the site errs, or the "
        "server asked it something else"
    )
    OTHER_SITE = "the message was made by or for another site; leave the site out"
    SIGNATURE = "the signature was not made with the key in the roster; compare the key with the site's"
    OWN_KEYS = "the server did not pass on the keys this site sent; do not trust it"
    SAME_KEYS = "the keys of two sites are the same; leave the site out"
    BAD_KEY = "the key is of low order, so that anyone knows what it yields; leave the site out"
    TOO_FEW = "fewer sites than the threshold, or than this site's minimum; wait for more"
    COHORT = "the sites named are not those of the cohort, each once"
    OTHER_DEAL = "the deal it signed is not that of its keys and shares; leave the site out"
    NOT_OPENED = "the sealed shares do not open, or are not those committed to; leave the site out"
    SURVIVORS = "the survivors named are not a part of the cohort, each once, with this site among them"
    OTHER_LIST = "this site has agreed to another list of survivors; do not trust the server"
    NOT_AGREED = "fewer sites than the threshold have signed this list of survivors"
    VECTOR = "the vector is not one-dimensional uint64 of the length that the others have"
    WRONG_SHARE = "a share it revealed is not the one it was dealt; the others' shares may suffice"
    WRONG_DEAL = "the shares it dealt do not yield what it announced; sum again without it"
    NOT_COMMITTED = "what is opened is not what the site signed: other numbers, or other masks"
    NO_PROOF = "nothing proves that it dealt wrong shares in this sum; do not trust the server"


class SecureSumError(FedHiPError):
    """The sum cannot go on: `reason` says why, `site` who caused it, where that is known.

    A site that raises it reveals nothing and stays where it was. At the server what the named site sent does not count,
    and the others may go on without it.
    """

    def __init__(self, site: str | None, reason: Reason) -> None:
        super().__init__(str(reason) if site is None else f"site {site!r}: {reason}")
        self.site = site
        self.reason = reason


@contextmanager
def blaming(site: str) -> Iterator[None]:
    """Name `site` in an error inside that names nobody yet."""
    try:
        yield
    except SecureSumError as error:
        raise SecureSumError(error.site or site, error.reason) from None


@contextmanager
def restoring() -> Iterator[None]:
    """Say of any error inside that a stored state is damaged."""
    try:
        yield
    except SecureSumError:
        raise SecureSumError(None, Reason.STATE) from None


def require(condition: bool, reason: Reason) -> None:
    """Go on only where `condition` holds."""
    if not condition:
        raise SecureSumError(None, reason)
