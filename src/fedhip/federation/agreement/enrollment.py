"""How keys that are made at the sites become a roster, and how each site knows that it is everybody's.

    coordinator   init     a first parcel for each site, without keys
    site          accept   makes the site's folder with its key there, and a reply with the public half
    coordinator   enroll   the roster from all replies, and a second parcel for each site
    site          accept   the roster joins the site's folder once the fingerprint was compared with another site's

A private key is never in a parcel or a reply. A site's folder has a roster only if its fingerprint was compared. How a
key is changed before the round: `rotation.py`. The server's authority goes the same way, by new parcels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding

from fedhip.federation.agreement import agreement as agreement_file
from fedhip.federation.agreement import policy as policy_file
from fedhip.federation.agreement import roster as roster_file
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.credentials import (
    SERVER_DAYS,
    hosts_of,
    make_authority,
    make_server_certificate,
    make_site_key,
    public_key_of,
    read_authority,
    site_key_of,
    write_private,
)
from fedhip.federation.agreement.fingerprint import fingerprint_of, require_fingerprint
from fedhip.federation.agreement.names import near, shown
from fedhip.federation.agreement.parcel import EnrollmentReply, Parcel
from fedhip.federation.agreement.policy import Policy
from fedhip.federation.agreement.roster import Roster
from fedhip.federation.agreement.rotation import (
    require_no_round,
    require_no_round_at,
    require_successor,
    with_new_keys,
)
from fedhip.federation.errors import (
    FederationError,
    SetupError,
)
from fedhip.federation.operations.paths import ServerPaths, take_free_place
from fedhip.federation.site.folder import (
    AUTHORITY,
    CONNECTION,
    KEY,
    parse_address,
    read_connection,
    write_connection,
)
from fedhip.runs.draft import temporary_folder
from fedhip.utils import files
from fedhip.utils.files import require_folder

PARCELS = "parcels"


def first_parcel(directory: Path, site: str) -> Path:
    """Where the coordinator finds a site's first parcel."""
    return directory / PARCELS / f"{site}-1.json"


def second_parcel(directory: Path, site: str) -> Path:
    """Where the coordinator finds a site's second parcel."""
    return directory / PARCELS / f"{site}-2.json"


def safe_policy(agreement: Agreement) -> Policy:
    """What a site permits until its people say otherwise."""
    return Policy(minimum_cohort=min(Policy.minimum_cohort, len(agreement.sites)))


def unpack(parcel: Parcel, folder: Path, policy: Policy | None = None) -> None:
    """The parcel's files and a site.toml, by default a safe one, in a site's folder that has its key already."""
    texts = {
        agreement_file.FILE: parcel.agreement.to_text(),
        CONNECTION: write_connection(parcel.site, *parse_address(parcel.address)),
        policy_file.FILE: (policy or safe_policy(parcel.agreement)).to_text(),
    }
    if parcel.roster is not None:
        texts[roster_file.FILE] = parcel.roster.to_text()
    for name, text in texts.items():
        write_private(folder / name, text.encode("utf-8"))
    write_private(folder / AUTHORITY, parcel.authority.public_bytes(Encoding.PEM))


def accept_first(parcel: Parcel, folder: str | Path) -> Path:
    """Make the site's folder with its key; the reply for the coordinator. Nothing is left where this fails."""
    folder = Path(folder).absolute()
    reply = f"reply-{parcel.site}.json"
    if (folder / reply).is_file():
        raise SetupError(
            f"{folder} exists: a first parcel was accepted there already, and its reply is {folder / reply}"
        )
    if folder.is_symlink() or folder.exists():
        raise SetupError(f"{folder} exists; choose another folder with --out: a key is never replaced")
    require_folder(folder.parent)
    with temporary_folder(folder) as draft:
        draft.chmod(0o700)
        make_site_key(draft / KEY)
        unpack(parcel, draft)
        write_private(draft / reply, EnrollmentReply.to(parcel, site_key_of(draft)).to_text().encode("utf-8"))
        take_free_place(draft, folder)
    return folder / reply


def accept_second(parcel: Parcel, folder: str | Path, read_aloud: Callable[[], str]) -> None:
    """Put the roster into the site's folder if the fingerprint that another site reads aloud is the one here."""
    folder = Path(folder).absolute()
    if parcel.roster is None:
        raise SetupError("this is a first parcel; the second has the roster")
    if not (folder / KEY).is_file():
        raise SetupError(
            f"there is no folder {folder} with this site's key; accept the first parcel before the second, or name "
            "the folder with --out"
        )
    name, _ = read_connection(folder / CONNECTION)
    if name != parcel.site:
        raise SetupError(f"the parcel is for the site {parcel.site!r}, and {folder} is the folder of {name!r}")
    before, authority = accepted_roster(folder), read_authority(folder / AUTHORITY)
    if before is not None:
        require_successor((before, authority), (parcel.roster, parcel.authority), folder)
    if Agreement.read(folder / agreement_file.FILE).digest() != parcel.agreement.digest():
        raise SetupError(
            f"the second parcel has another agreement than the first, which is in {folder}; ask the coordinator why"
        )
    if before is None and authority != parcel.authority:
        raise SetupError(
            f"the second parcel has another authority than the first, which is in {folder}; ask the coordinator why"
        )
    if public_key_of(site_key_of(folder)) != parcel.roster.keys[name]:
        raise SetupError(
            f"the roster has another key of the site {name!r} than the one in {folder}: somebody else would act as "
            "this site. Take no part; ask the coordinator where the key came from"
        )
    if before is not None:
        require_no_round_at(folder, parcel.agreement)
    require_fingerprint(read_aloud(), parcel.fingerprint)
    files.write_private(folder / roster_file.FILE, parcel.roster.to_text().encode("utf-8"))
    files.write_private(folder / AUTHORITY, parcel.authority.public_bytes(Encoding.PEM))


def accepted_roster(folder: Path) -> Roster | None:
    """The roster that a site accepted before."""
    path = folder / roster_file.FILE
    return Roster.read(path) if path.exists() else None


@dataclass(frozen=True)
class Enrolled:
    """The roster that was made, and what goes to each site."""

    roster: Roster
    fingerprint: str
    parcels: dict[str, Path]


def enroll(directory: str | Path, replies: Sequence[str | Path], *, replacing: bool = False) -> Enrolled:
    """The roster from the replies of all sites, at once; nothing is left where one is missing or wrong.

    With `replacing` the replies are of sites that changed their keys since, before the round.
    """
    paths = ServerPaths.open(directory)
    target = paths.path / roster_file.FILE
    if target.exists() and not replacing:
        raise SetupError(
            f"{target} exists: the sites are enrolled. As long as no round was begun, --replace takes the new reply of "
            "a site that changed its key (rotate-key), or whose reply was a wrong one"
        )
    agreement = Agreement.read(paths.path / agreement_file.FILE)
    found = _replies(agreement, replies)
    roster = with_new_keys(paths, list(found.values())) if replacing else _roster(agreement, found)
    first = {site: Parcel.read(first_parcel(paths.path, site)) for site in agreement.sites}
    made: dict[str, Path] = {}
    try:
        for site, parcel in first.items():
            made[site] = second_parcel(paths.path, site)
            # What is there is of the roster before, or of an enrolment that was broken off.
            files.write_private(made[site], replace(parcel, roster=roster).to_text().encode("utf-8"))
        files.write_private(target, roster.to_text().encode("utf-8"))
    except BaseException:
        for path in made.values():
            path.unlink(missing_ok=True)
        raise
    return Enrolled(roster, fingerprint_of(agreement, roster, read_authority(paths.authority)), made)


def renew_authority(paths: ServerPaths, hosts: Sequence[str] = (), days: int = SERVER_DAYS) -> Enrolled:
    """Another authority before the round, the server's certificate from it, and each site's parcels.

    Certificates of the old one are worth nothing at a site that has accepted the new one; an older parcel is refused
    there. Whatever breaks this off, it can be done again.
    """
    require_no_round(paths)
    if not (paths.path / PARCELS).is_dir():
        raise SetupError(
            "the sites' keys were made here, and there are no parcels by which sites could accept another authority; "
            "make a new federation with init"
        )
    agreement, roster = paths.agreement(), paths.roster()
    with temporary_folder(paths.authority.parent) as draft:
        make_authority(draft, agreement.name, after=read_authority(paths.authority))
        make_server_certificate(draft, hosts or hosts_of(paths.certificate), days)
        authority = read_authority(draft / paths.authority.relative_to(paths.path))
        for site in agreement.sites:
            parcel = replace(Parcel.read(first_parcel(paths.path, site)), authority=authority)
            files.write_private(first_parcel(paths.path, site), parcel.to_text().encode("utf-8"))
            files.write_private(
                second_parcel(paths.path, site), replace(parcel, roster=roster).to_text().encode("utf-8")
            )
        for path in (paths.authority.with_suffix(".key"), paths.authority, paths.key, paths.certificate):
            (draft / path.relative_to(paths.path)).replace(path)
    parcels = {site: second_parcel(paths.path, site) for site in agreement.sites}
    return Enrolled(roster, fingerprint_of(agreement, roster, authority), parcels)


def _replies(agreement: Agreement, replies: Sequence[str | Path]) -> dict[str, EnrollmentReply]:
    found: dict[str, EnrollmentReply] = {}
    for path in replies:
        reply = EnrollmentReply.read(path)
        if reply.federation != agreement.name:
            raise SetupError(f"{path} is a reply to the federation {shown(reply.federation)}, not {agreement.name!r}")
        if reply.site not in agreement.sites:
            raise SetupError(f"{path} is of {shown(reply.site)}, which is no site{near(reply.site, agreement.sites)}")
        if reply.agreement != agreement.digest():
            raise SetupError(
                f"{path}: the site {reply.site!r} accepted another agreement than {agreement_file.FILE} here; send it "
                "its first parcel again"
            )
        if reply.site in found:
            raise SetupError(f"there are two replies of the site {reply.site!r}; give one, and ask the site which")
        found[reply.site] = reply
    return found


def _roster(agreement: Agreement, found: Mapping[str, EnrollmentReply]) -> Roster:
    if missing := [site for site in agreement.sites if site not in found]:
        raise SetupError(f"there is no reply of {', '.join(map(repr, missing))}; give the replies of all sites at once")
    return Roster(agreement.name, {site: reply.key for site, reply in found.items()})


def fingerprint_at(where: str | Path) -> str:
    """The fingerprint of a site's folder, of the coordinator's, or of a second parcel."""
    path = Path(where).absolute()
    if path.is_file():
        return Parcel.read(path).fingerprint
    if (path / "server").is_dir():
        server = ServerPaths.open(path)
        roster, authority = server.roster(), server.authority
    elif (path / CONNECTION).is_file():
        if not (path / roster_file.FILE).is_file():
            raise SetupError(f"{path} has no roster yet: accept the coordinator's second parcel, or give that parcel")
        roster, authority = Roster.read(path / roster_file.FILE), path / AUTHORITY
    else:
        raise FederationError(f"{path} is no site's folder, no coordinator's folder and no parcel; check the path")
    agreement = Agreement.read(path / agreement_file.FILE)
    agreement.require_roster(roster)
    return fingerprint_of(agreement, roster, read_authority(authority))
