"""A site's key is changed before the round: by the site itself, and in the roster of nobody who does not accept it.

    site          rotate-key         a new key in the site's folder, and a new reply for the coordinator
    coordinator   enroll --replace   a roster with the new key, in which the old one is retired, and new second parcels
    every site    accept             the new roster in place of the old one, once its fingerprint was compared again

The fingerprint is another one, so that a server cannot change a key by itself. A retired key never comes back: the list
only grows, which is also how a site tells an older roster from a newer one. Once a round was begun no key is changed:
a ledger and shares are bound to the keys, and a federation has one round.

The server's authority goes the same way (`enrollment.py`); of two, the one that begins later is the newer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cryptography.x509 import Certificate

from fedhip.federation.agreement import agreement as agreement_file
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.credentials import make_site_key, read_authority, site_key_of
from fedhip.federation.agreement.parcel import EnrollmentReply, Parcel
from fedhip.federation.agreement.roster import Roster
from fedhip.federation.errors import SetupError
from fedhip.federation.operations.paths import ServerPaths, StatePaths, command
from fedhip.federation.server.cohort import revoked_in
from fedhip.federation.site.folder import AUTHORITY, CONNECTION, KEY, read_connection
from fedhip.federation.site.ledger import SumLedger
from fedhip.federation.site.state import SiteState
from fedhip.utils.files import write_private


def rotate_key(folder: str | Path) -> Path:
    """A new key in the place of a site's own, which is deleted; the reply for the coordinator."""
    path = Path(folder).absolute()
    if not (path / KEY).is_file():
        raise SetupError(f"there is no folder {path} with a site's key; give the folder that accept made")
    name, address = read_connection(path / CONNECTION)
    agreement = Agreement.read(path / agreement_file.FILE)
    require_no_round_at(path, agreement)
    new = path / f"{KEY}.new"
    for left in (new, path / f"{KEY}.new.pub"):  # of a change that was broken off
        left.unlink(missing_ok=True)
    make_site_key(new)
    for suffix in (".pub", ""):
        (path / f"{KEY}.new{suffix}").replace(path / f"{KEY}{suffix}")
    parcel = Parcel(name, address, agreement, read_authority(path / AUTHORITY))
    reply = path / f"reply-{name}.json"
    write_private(reply, EnrollmentReply.to(parcel, site_key_of(path)).to_text().encode("utf-8"))
    return reply


def require_no_round_at(folder: Path, agreement: Agreement) -> None:
    """Refuse to change a key at a site that runs, or was asked for a sum of this agreement."""
    state = StatePaths(folder / "state")
    if state.ready.is_file():
        raise SetupError(f"the site runs; end it before a key is changed: {command('stop', folder)}")
    begun = any((state.path / name).exists() for name in ("session.bin", "finished.json"))
    if not begun:
        with SumLedger.open(witness=SiteState(folder).witness) as sums:
            begun = any(line.get("agreement") == agreement.digest() for line in sums.lines)
    if begun:
        raise SetupError(
            "a round of this agreement was begun at this site, and its keys stay: make a new federation, or have the "
            "coordinator revoke the key"
        )


def require_successor(before: tuple[Roster, Certificate], after: tuple[Roster, Certificate], folder: Path) -> None:
    """Refuse what does not follow the roster and authority in a site's folder: the same, older, or keys not retired."""
    (old, authority), (new, renewed) = before, after
    if renewed == authority and new.digest() == old.digest():
        raise SetupError(f"{folder} has accepted a roster already; its fingerprint: {command('fingerprint', folder)}")
    if not {*old.retired, *(old.keys[name] for name in changed(old, new))} <= {*new.retired}:
        raise SetupError(
            f"the parcel has an older roster than {folder}, or one that replaces a key without retiring it. Take no "
            "part; ask the coordinator why"
        )
    if renewed != authority and renewed.not_valid_before_utc <= authority.not_valid_before_utc:
        raise SetupError(
            f"the parcel has an older authority of the server than {folder}. Take no part; ask the coordinator why"
        )


def changed(before: Roster, after: Roster) -> list[str]:
    """The sites whose keys are others."""
    return [name for name, key in before.keys.items() if after.keys.get(name) != key]


def require_no_round(paths: ServerPaths) -> None:
    """Refuse to change keys or the authority of a server that runs, or that has begun a round."""
    if paths.state.ready.is_file():
        raise SetupError(
            f"the server runs; end it before what sites compared is changed: {command('stop', paths.path)}"
        )
    if paths.progress.is_file() and paths.progress.stat().st_size:
        raise SetupError(
            "a round was begun, and its keys and its authority stay: make a new federation, or revoke a site's key"
        )


def with_new_keys(paths: ServerPaths, replies: Sequence[EnrollmentReply]) -> Roster:
    """The coordinator's roster with the keys of these sites, and those before retired; nothing is written."""
    before, out = paths.roster(), revoked_in(paths.path)
    require_no_round(paths)
    for reply in replies:
        if reply.site in out:
            raise SetupError(f"the site {reply.site!r} was revoked, for good; make a new federation with it")
        if reply.key == before.keys[reply.site]:
            raise SetupError(
                f"the site {reply.site!r} has this key in the roster already; there it is changed by: fedhip "
                "federation rotate-key FOLDER"
            )
    retired = (*before.retired, *(before.keys[reply.site] for reply in replies))
    return replace(before, keys={**before.keys, **{reply.site: reply.key for reply in replies}}, retired=retired)
