"""A site shows an auditor what it masked, and the auditor sees whether that is what the site signed.

The server keeps what every site signed in each sum (`state/commitments`), and a site what it masked (`state/openings`),
where the agreement names an auditor. What the two are: `fedhip.federation.secure_sum.commitment`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedhip.errors import StatisticsError
from fedhip.federation.agreement import agreement as agreement_file
from fedhip.federation.agreement import roster as roster_file
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.roster import Roster
from fedhip.federation.errors import SetupError
from fedhip.federation.secure_sum import Commitment, Opening, SecureSumError
from fedhip.federation.secure_sum.terms import Terms
from fedhip.federation.site.state import SiteState
from fedhip.federation.sums.table import KINDS, STATISTICS, sums_of
from fedhip.federation.sums.vector import Vector
from fedhip.utils.files import write_private


@dataclass(frozen=True)
class Audited:
    """What an auditor finds: the opened numbers are those that the site signed and masked.

    `sums` are those of the agreement that have so many numbers; `rows` are of each class, where they may be statistics,
    and `impossible` is why no rows have them.
    """

    site: str
    session: str
    agreement: Agreement
    vector: Vector
    sums: tuple[str, ...]
    rows: tuple[int, ...] | None
    impossible: str | None


def open_commitment(folder: Path, ask: str, out: Path) -> Opening:
    """Write what this site masked in its latest sum of this name to a file of its owner, for the auditor."""
    agreement = Agreement.read(folder / agreement_file.FILE)
    if agreement.auditor is None:
        raise SetupError(f"the agreement of {folder} names no auditor, so nothing was kept that could be shown")
    if ask not in KINDS or KINDS[ask] not in sums_of(agreement):
        names = ", ".join(kind.name for kind in sums_of(agreement))
        raise SetupError(f"there is no sum {ask!r} in this agreement; give one of {names}")
    found = sorted(SiteState(folder).openings.glob(f"*-{ask}.opening"), key=lambda path: path.stat().st_mtime_ns)
    if not found:
        raise SetupError(f"{folder} has masked nothing for a sum {ask!r} yet")
    opening = _opening(found[-1])
    if out.exists():
        raise SetupError(f"{out} exists; give another file")
    write_private(out, opening.to_bytes(), new=True)
    return opening


def verify_commitment(opening: Path, commitment: Path, federation: Path) -> Audited:
    """Whether what a site opens is what it signed, under the agreement and roster in a folder; refused where not."""
    agreement = Agreement.read(federation / agreement_file.FILE)
    roster = Roster.read(federation / roster_file.FILE)
    agreement.require_roster(roster)
    opened, signed = _opening(opening), _commitment(commitment)
    terms = Terms.of(roster.keys, signed.terms.session, signed.terms.context, signed.terms.threshold)
    lines = signed.terms.context.decode("utf-8", "replace").split("\n")
    if terms.points != signed.terms.points or lines[1:3] != [agreement.digest(), roster.digest()]:
        raise SetupError(f"{commitment} is of another agreement or roster than {federation}")
    if opened.commitment.site != signed.site:
        raise SetupError(f"{opening} is of site {opened.commitment.site!r}, and {commitment} of {signed.site!r}")
    try:
        opened.require_fits(signed)
    except SecureSumError as error:
        raise SetupError(f"{opening} does not open {commitment}: {error}") from None
    sums = tuple(kind.name for kind in sums_of(agreement) if kind.length(agreement) == len(opened.vector))
    rows, impossible = None, None
    if STATISTICS.name in sums:
        rows = tuple(map(int, agreement.layout.counts(opened.vector)))
        try:
            STATISTICS.check_part(opened.vector, agreement)
        except StatisticsError as error:
            impossible = str(error)
    session = signed.terms.session.hex()
    return Audited(signed.site, session, agreement, opened.vector.view(np.uint64), sums, rows, impossible)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}") from None


def _opening(path: Path) -> Opening:
    try:
        return Opening.from_bytes(_read(path))
    except SecureSumError:
        raise SetupError(f"{path} is no opening of a commitment, or damaged; ask the site for it again") from None


def _commitment(path: Path) -> Commitment:
    try:
        return Commitment.from_bytes(_read(path))
    except SecureSumError:
        raise SetupError(f"{path} is no commitment, or damaged; ask the coordinator for it again") from None
