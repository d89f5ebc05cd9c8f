"""What a site tells the server when it does not answer: a code of this list, never a word from its data or its disk."""

from __future__ import annotations

from enum import StrEnum

from fedhip.federation.errors import FederationError


class SiteCode(StrEnum):
    """Why there is no answer. The reason in full is in the site's own log."""

    OK = "ok"
    PROTOCOL = "protocol"
    MALFORMED = "malformed"
    AGREEMENT = "agreement"
    ROSTER = "roster"
    SESSION = "session"
    ANSWERED = "answered"
    ORDER = "order"
    FOLDER = "folder"
    POLICY = "policy"
    UNMASKED = "unmasked"
    COHORT = "cohort"
    SECURE_SUM = "secure-sum"
    SHARES = "shares"
    SECOND_SUM = "second-sum"
    DIFFERENCE = "difference"
    LEDGER = "ledger"
    BUDGET = "budget"
    CLIPPING = "clipping"
    LEAVER = "leaver"
    WEIGHTS = "weights"
    LOSS = "loss"
    DATA = "data"
    CLASSES = "classes"
    WIDTH = "width"
    NO_ROWS = "no-rows"
    FEW_ROWS = "few-rows"
    ROWS = "rows"
    IMPOSSIBLE = "impossible"
    OVERFLOW = "overflow"
    ENCODER = "encoder"
    TOTAL = "total"
    VETO = "veto"
    OUTPUT = "output"
    INTERNAL = "internal"


class ServerCode(StrEnum):
    """Why the server went on without a site that sent no code of its own."""

    NEVER_CAME = "never-came"
    REVOKED = "revoked"
    LATE = "late"
    GONE = "gone"
    CRASHED = "crashed"
    GARBAGE = "garbage"
    TOO_LARGE = "too-large"
    SIGNATURE = "signature"
    TWICE = "twice"
    ACCUSED = "accused"
    CHEATED = "cheated"


_MEANINGS: dict[SiteCode | ServerCode, str] = {
    SiteCode.OK: "answered",
    SiteCode.PROTOCOL: "has another version of fedhip; upgrade the older one, so that all have the same",
    SiteCode.MALFORMED: "could not read the server's message",
    SiteCode.AGREEMENT: "holds another federation.toml; send it the coordinator's",
    SiteCode.ROSTER: "holds another roster.json; compare the fingerprints and send it the coordinator's",
    SiteCode.SESSION: "is in another session",
    SiteCode.ANSWERED: "has answered this step already and does so once only",
    SiteCode.ORDER: "was asked for a step out of order",
    SiteCode.FOLDER: "has an incomplete or damaged site folder; see its log",
    SiteCode.POLICY: "does not permit what the agreement asks; see its log",
    SiteCode.UNMASKED: "refuses to send statistics without a mask",
    SiteCode.COHORT: "refuses a cohort smaller than its own minimum, or of other sites than the sum before",
    SiteCode.SECURE_SUM: "refuses this request of the secure sum; see its log",
    SiteCode.SHARES: "cannot open the shares that another site dealt to it; see its log",
    SiteCode.SECOND_SUM: "has taken part in a finished sum of this agreement, and refuses another",
    SiteCode.DIFFERENCE: "was in a sum of nearly the same sites with some of the same rows; see its log",
    SiteCode.LEDGER: "cannot read its ledger of sums, or it was altered; see its log",
    SiteCode.BUDGET: "has spent what its rows may tell in all, by max_epsilon of its site.toml; see its log",
    SiteCode.CLIPPING: "would clip its rows otherwise than agreed; have the same fedhip everywhere",
    SiteCode.LEAVER: "refuses a sum that a site of the last has left, unless its site.toml has allow_leavers",
    SiteCode.WEIGHTS: "was asked about the same weights again, or about too many",
    SiteCode.LOSS: "has no finite loss at these weights; are its features of the others' scale?",
    SiteCode.DATA: "cannot read its data; see its log",
    SiteCode.CLASSES: "has a class that is none of the agreed ones; see its log",
    SiteCode.WIDTH: "has features of another width than agreed",
    SiteCode.NO_ROWS: "has no row to train on",
    SiteCode.FEW_ROWS: "refuses to go on: the others have fewer rows than there are features; see its log",
    SiteCode.ROWS: "has more rows than agreed",
    SiteCode.IMPOSSIBLE: "found its own statistics to be those of no data set; see its log",
    SiteCode.OVERFLOW: "has values too large for the agreed grid; agree on fewer fraction bits",
    SiteCode.ENCODER: "lacks the agreed encoder, or received another",
    SiteCode.TOTAL: "found the sum not to hold its own statistics",
    SiteCode.VETO: "refuses the sum: more sites than agreed find it worse than their own rows alone",
    SiteCode.OUTPUT: "cannot write its results; see its log",
    SiteCode.INTERNAL: "met an error it did not expect; see its log",
    ServerCode.NEVER_CAME: "did not come before the deadline",
    ServerCode.REVOKED: "is let in no more: the coordinator has revoked its key",
    ServerCode.LATE: "did not answer before the deadline",
    ServerCode.GONE: "is no longer connected",
    ServerCode.CRASHED: "broke off without an answer",
    ServerCode.GARBAGE: "sent what is no answer to the question",
    ServerCode.TOO_LARGE: "sent more than an answer can have, by the agreement",
    ServerCode.SIGNATURE: "is not who it says it is: its signature does not fit the roster",
    ServerCode.TWICE: "is connected twice; the first that answered counts",
    ServerCode.ACCUSED: "dealt shares that several sites cannot open",
    ServerCode.CHEATED: "dealt shares of something else than it announced, which is proven",
}


def meaning(code: SiteCode | ServerCode) -> str:
    """The code in words, to follow the site's name."""
    return _MEANINGS[code]


class SiteRefusalError(FederationError):
    """The site does not answer: a code for the server, and the reason in full for the site's own log."""

    def __init__(self, code: SiteCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
