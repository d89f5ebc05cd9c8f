"""The fingerprint of a federation: what two sites compare by telephone before they take part.

It stands for the agreement, every site's name and public key, and the server's authority. A coordinator that makes two
rosters needs no second preimage, only two that collide, which takes the square root of the work. So the fingerprint has
64 decimal digits, 212 bits: a collision takes 2^106 attempts. Digits are read aloud alike in every language.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.hashes import SHA256

from fedhip.federation.agreement.names import shown
from fedhip.federation.errors import SetupError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from fedhip.federation.agreement.agreement import Agreement
    from fedhip.federation.agreement.roster import Roster

GROUPS, DIGITS = 16, 4
#: Who types wrong errs in a group or two; rosters that differ have hardly a group in common.
_MISTYPED = 3

_FORM = f"a fingerprint is {GROUPS} groups of {DIGITS} digits"


def fingerprint_of(agreement: Agreement, roster: Roster, authority: Certificate) -> str:
    """`4711 0815 …`, of everything that the sites must hold alike."""
    parts = (agreement.digest(), roster.digest(), authority.fingerprint(SHA256()).hex())
    digest = hashlib.sha256("\n".join(("fedhip.federation", *parts)).encode("ascii")).digest()
    digits = f"{int.from_bytes(digest) % 10 ** (GROUPS * DIGITS):0{GROUPS * DIGITS}d}"
    return " ".join(digits[at : at + DIGITS] for at in range(0, len(digits), DIGITS))


def require_fingerprint(given: str, here: str) -> None:
    """Refuse what another site told if it is not the one here; a group that differs is named by its place."""
    groups = _groups(given)
    differ = [str(place) for place, pair in enumerate(zip(groups, here.split(), strict=True), 1) if pair[0] != pair[1]]
    if not differ:
        return
    if len(differ) <= _MISTYPED:
        which = f"group {differ[0]} differs" if len(differ) == 1 else f"groups {', '.join(differ)} differ"
        raise SetupError(f"{which} from the fingerprint here; have it read again, slowly, and type it anew")
    raise SetupError(
        f"{len(differ)} of {GROUPS} groups differ from the fingerprint here: the two sites were given different "
        "agreements, keys or authorities. Take no part, and tell the other sites"
    )


def _groups(given: str) -> list[str]:
    """What was typed, in groups; blanks and hyphens may stand anywhere."""
    words = re.split(r"[\s-]+", given.strip())
    if len(words) == GROUPS:
        for place, word in enumerate(words, 1):
            if not re.fullmatch(f"[0-9]{{{DIGITS}}}", word):
                raise SetupError(f"group {place} is {shown(word)}; {_FORM}")
        return words
    digits = "".join(words)
    if not re.fullmatch("[0-9]*", digits):
        raise SetupError(f"{shown(given)} is no fingerprint; {_FORM}")
    if len(digits) != GROUPS * DIGITS:
        raise SetupError(f"{len(digits)} digits were told, and there are {GROUPS * DIGITS}; {_FORM}")
    return [digits[at : at + DIGITS] for at in range(0, len(digits), DIGITS)]
