"""What `fedhip federation init` does: a folder for the coordinator.

    federation.toml                   the agreement
    ca/  server/                      the authority, and the server's certificate
    state/                            the server's own
    parcels/NAME-1.json               what each site gets, to make its key there (`enrollment.py`)

Where all sites are on this machine, their keys are made here instead of parcels:

    roster.json                       the public keys
    site-NAME/                        each site's folder, with its private key

The folder is there whole, or not at all, and its owner alone can read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.x509 import Certificate

from fedhip.core.exact.columns import COLUMN_BITS
from fedhip.core.exact.fixedpoint import fraction_bits_for
from fedhip.features.lifts.kinds import COMPETING, COMPETING_WIDTH, LANDMARKS, NARROW
from fedhip.federation.agreement import agreement as agreement_file
from fedhip.federation.agreement import roster as roster_file
from fedhip.federation.agreement.agreement import LIFTS, Agreement
from fedhip.federation.agreement.backbone import backbone_reference
from fedhip.federation.agreement.credentials import (
    SERVER_DAYS,
    is_loopback,
    make_authority,
    make_server_certificate,
    make_site_key,
    read_authority,
    require_host,
    write_private,
)
from fedhip.federation.agreement.enrollment import PARCELS, first_parcel, safe_policy, unpack
from fedhip.federation.agreement.fields import choice, require_number, require_whole
from fedhip.federation.agreement.fingerprint import fingerprint_of
from fedhip.federation.agreement.limits import largest_lifted, least_threshold, rows_that_fit
from fedhip.federation.agreement.names import require_class_names, require_site_names, same_class
from fedhip.federation.agreement.parcel import Parcel
from fedhip.federation.agreement.privacy import draft_privacy
from fedhip.federation.agreement.roster import Roster
from fedhip.federation.operations.paths import command, require_free, take_free_place
from fedhip.federation.site.folder import AUTHORITY, KEY, format_address, require_port
from fedhip.runs.draft import temporary_folder
from fedhip.utils.candidates import CANDIDATES
from fedhip.utils.files import require_folder

DEFAULT_PORT = 8443
#: Rows of one site, where the grid has room for so many. Who has more says so: nobody can see that a site made rows up,
#: and its weight in everybody's model is that of its rows.
DEFAULT_MAX_ROWS = 100_000

_KEYS_HERE = (
    "the private keys of all sites were made here: whoever has had this folder can act as any site, and read what it "
    "sends; leave --make-keys out, and each site makes its own"
)


def draft(**values: Any) -> Agreement:
    """The agreement of these values, those that are None or missing derived: from the sites, the columns, the features.

    The units of the columns are found by a first sum unless they are given (`column_offsets`, `column_exponents`); the
    scale is then that of `fedhip run`. With columns="plain" all have the same, and `largest_feature` decides the scale:
    16 is about twice what the packaged encoder gives on sketches. A site with a larger feature is refused before it
    sends anything. Models are chosen (`head="auto"`), as in `fedhip run`, unless a head is named, or what only a ridge
    has; of narrow features a lift competes then, unless something is said of lifts, columns or vetoes.
    """
    given = {name: value for name, value in values.items() if value is not None}
    sites, lift = require_site_names(given["sites"]), choice(*LIFTS)("lift", given.get("lift", "none"))
    n, quorum, threshold = len(sites), given.get("quorum"), given.get("threshold")
    dishonest = given.get("dishonest_sites") if given.get("secure_sum", True) else None
    if dishonest is not None:
        require_whole("dishonest_sites", dishonest, 0, n - 1, why=f"there are {n} sites")
    usual = least_threshold(n, dishonest)
    if quorum is None:
        quorum = usual if threshold is None else max(usual, require_whole("threshold", threshold, 1, n))
    if threshold is None:
        threshold = min(usual, require_whole("quorum", quorum, 1, n))
    if "backbone" in given:
        given["backbone"] = backbone_reference(given["backbone"])
    if "epsilon" in given:
        given |= draft_privacy(given, n, threshold)
    largest = require_number("largest_feature", given.get("largest_feature", Agreement.largest_feature), above=0.0)
    summed = largest if lift == "none" else largest_lifted(lift, given.get("lift_width") or given["width"])
    columns = given.get("columns") or ("plain" if lift in LANDMARKS else Agreement.columns)
    in_units = columns != "plain" and lift == "none"
    bits = given.get("fraction_bits", COLUMN_BITS if in_units else fraction_bits_for(summed))
    rows = given.get("max_rows", DEFAULT_MAX_ROWS)
    if "max_rows" not in given and not in_units:
        rows = max(1, min(rows, rows_that_fit(summed, require_whole("fraction_bits", bits, 0, 62)) // n))
    head, names = given.get("head"), tuple(map("+".join, CANDIDATES))
    if head is None:  # as in `fedhip run`: what a ridge alone has asks for one
        ridges_own = not (given.get("standardize", True) and given.get("intercept", True))
        ridges_own |= given.get("beta", "auto") != "auto" or "epsilon" in given
        head = "ridge" if ridges_own else "auto"
    chosen: dict[str, Any] = {"prior": "client", "candidates": names} if head == "auto" else {}
    usual = columns == "sum" and given.get("beta", "auto") == "auto" and not {"lift", "veto_share"} & given.keys()
    if chosen and usual and given["width"] <= NARROW:
        chosen |= {"competing_lift": COMPETING, "competing_width": COMPETING_WIDTH}
    given = {**chosen, **given, "head": head}
    derived = {"columns": columns, "fraction_bits": bits, "quorum": quorum, "threshold": threshold, "max_rows": rows}
    classes = tuple(map(same_class, require_class_names(given["classes"])))
    return Agreement(**{**given, **derived, "sites": sites, "classes": classes})


@dataclass(frozen=True)
class InitSummary:
    """What was made, for the coordinator's people."""

    directory: Path
    agreement: Agreement
    authority: Certificate
    address: str
    roster: Roster | None  # where the keys were made here
    for_sites: Mapping[str, Path]  # what each site must get: its folder, with its key in it; else its first parcel
    warnings: tuple[str, ...]

    @property
    def fingerprint(self) -> str | None:
        """What the sites compare by telephone, where the keys are known."""
        return None if self.roster is None else fingerprint_of(self.agreement, self.roster, self.authority)

    @property
    def next_commands(self) -> tuple[tuple[str, str], ...]:
        """Who does what next: (where, command)."""
        if self.roster is None:
            return (
                ("at each site", "fedhip federation accept NAME-1.json"),
                ("here", f"{command('enroll', self.directory)} reply-*.json"),
            )
        return (
            ("here", command("serve", self.directory)),
            ("at each site", "fedhip federation site SITE_FOLDER --data DATA"),
            ("here", command("run", self.directory)),
        )


def init(
    directory: str | Path,
    *,
    hosts: Sequence[str] = (),
    port: int = DEFAULT_PORT,
    days: int = SERVER_DAYS,
    make_keys: bool | None = None,
    **values: Any,
) -> InitSummary:
    """Make the federation's folder, of an agreement with these values (`draft`). Nothing is left where this fails.

    By `hosts` the sites reach the server; the first is written into their connection.toml. With `make_keys` the private
    keys of all sites are made here; where that is not said, they are if all hosts are this machine.
    """
    directory = Path(directory).absolute()
    require_free(directory)
    require_folder(directory.parent)
    agreement = draft(**values)
    hosts = tuple(map(require_host, hosts))
    here = all(map(is_loopback, hosts))
    make_keys = here if make_keys is None else make_keys
    address = format_address(hosts[0] if hosts else "127.0.0.1", require_port(port))
    roster = None
    with temporary_folder(directory) as folder:
        folder.chmod(0o700)
        make_authority(folder, agreement.name)
        make_server_certificate(folder, hosts, days)
        (folder / "state").mkdir(mode=0o700)
        write_private(folder / agreement_file.FILE, agreement.to_text().encode("utf-8"))
        authority = read_authority(folder / "ca" / AUTHORITY)
        parcels = {name: Parcel(name, address, agreement, authority) for name in agreement.sites}
        if make_keys:
            for_sites = {name: directory / f"site-{name}" for name in agreement.sites}
            roster = _make_sites(folder, agreement, parcels)
        else:
            for_sites = {name: first_parcel(directory, name) for name in agreement.sites}
            (folder / PARCELS).mkdir(mode=0o700)
            for name, parcel in parcels.items():
                write_private(first_parcel(folder, name), parcel.to_text().encode("utf-8"))
        take_free_place(folder, directory)
    warnings = (*agreement.warnings, *([_KEYS_HERE] if make_keys and not here else ()))
    return InitSummary(directory, agreement, authority, address, roster, for_sites, warnings)


def _make_sites(draft: Path, agreement: Agreement, parcels: Mapping[str, Parcel]) -> Roster:
    """Every site's folder with a key, and the roster."""
    keys = {}
    for name in parcels:
        folder = draft / f"site-{name}"
        folder.mkdir(mode=0o700)
        keys[name] = make_site_key(folder / KEY)
    roster = Roster(agreement.name, keys)
    for name, parcel in parcels.items():
        # Who has all the sites has said what their people would.
        policy = replace(safe_policy(agreement), allow_few_rows=agreement.few_rows)
        unpack(replace(parcel, roster=roster), draft / f"site-{name}", policy)
    write_private(draft / roster_file.FILE, roster.to_text().encode("utf-8"))
    return roster
