"""What `fedhip federation init` does: a folder for the coordinator.

    federation.toml                   the agreement
    ca/  server/                      the authority, and the server's certificate
    state/                            the server's own
    parcels/NAME-1.json               what each site gets, to make its key there (`enrolling.py`)

Where all sites are on this machine, their keys are made here instead of parcels:

    roster.json                       the public keys
    site-NAME/                        each site's folder, with its private key

The folder is there whole, or not at all, and its owner alone can read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from cryptography.x509 import Certificate

from fedhip.core.exact.columns import COLUMN_BITS
from fedhip.core.exact.fixedpoint import fraction_bits_for
from fedhip.federation.agreement import agreement as agreement_file
from fedhip.federation.agreement import roster as roster_file
from fedhip.federation.agreement.agreement import (
    Agreement,
    ColumnsOption,
    Head,
    LiftOption,
    PriorOption,
    backbone_reference,
    largest_lifted,
    least_threshold,
    require_number,
    require_whole,
    rows_that_fit,
)
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
from fedhip.federation.agreement.enrolling import PARCELS, first_parcel, safe_policy, unpack
from fedhip.federation.agreement.fingerprint import fingerprint_of
from fedhip.federation.agreement.names import require_class_names, require_site_names, same_class
from fedhip.federation.agreement.parcel import Parcel
from fedhip.federation.agreement.roster import Roster
from fedhip.federation.operations.places import command, require_free, take_free_place
from fedhip.federation.site.folder import AUTHORITY, KEY, format_address, require_port
from fedhip.runs.folder import beside
from fedhip.utils.files import require_folder

DEFAULT_PORT = 8443
#: Rows of one site, where the grid has room for so many. Who has more says so: nobody can see that a site made rows up,
#: and its weight in everybody's model is that of its rows.
DEFAULT_MAX_ROWS = 100_000

_KEYS_HERE = (
    "the private keys of all sites were made here: whoever has had this folder can act as any site, and read what it "
    "sends; leave --make-keys out, and each site makes its own"
)


@dataclass(frozen=True, kw_only=True)
class InitSettings:
    """What the coordinator decides. None is derived: fraction_bits from largest_feature, the others from the sites.

    The units of the columns are found by a first sum unless they are given (`column_offsets`, `column_exponents`); the
    scale is then that of `fedhip run`. With columns="plain" all have the same, and `largest_feature` decides the scale:
    16 is about twice what the packaged encoder gives on sketches. A site with a larger feature is refused before it
    sends anything.
    """

    name: str
    sites: Sequence[str]
    classes: Sequence[str]
    width: int
    make_keys: bool | None = None  # the private keys of all sites, here; None: where all hosts are loopback
    hosts: Sequence[str] = ()  # by which sites reach the server; the first is written into their connection.toml
    port: int = DEFAULT_PORT
    days: int = SERVER_DAYS
    backbone: Mapping[str, Any] | None = None
    encoder_digest: str | None = None
    encoder_size: int | None = None
    columns: ColumnsOption | None = None
    column_offsets: Sequence[float] | None = None
    column_exponents: Sequence[int] | None = None
    largest_feature: float = 16.0
    lift: LiftOption = "none"
    lift_width: int | None = None
    lift_seed: int | None = None
    lift_bandwidth: float | None = None
    head: Head = "ridge"
    gradient_rounds: int | None = None
    prior: PriorOption = "none"
    alpha: float | Literal["loo"] = "loo"
    beta: float | Literal["auto", "gcv"] = "auto"
    standardize: bool = True
    intercept: bool = True
    seed: int = 0
    fraction_bits: int | None = None
    only_local_classes: bool = False
    secure_sum: bool = True
    quorum: int | None = None
    threshold: int | None = None
    dishonest_sites: int | None = None
    few_rows: bool = False
    deadline: float = 600.0
    max_rows: int | None = None

    def agreement(self) -> Agreement:
        """The agreement of these settings, checked."""
        sites = require_site_names(self.sites)
        n = len(sites)
        usual = least_threshold(n, self.dishonest_sites if self.secure_sum else None)
        threshold, quorum, bits, max_rows = self.threshold, self.quorum, self.fraction_bits, self.max_rows
        if quorum is None:
            quorum = usual if threshold is None else max(usual, require_whole("threshold", threshold, 1, n))
        if threshold is None:
            threshold = min(usual, require_whole("quorum", quorum, 1, n))
        largest = require_number("largest_feature", self.largest_feature, above=0.0)
        summed = largest if self.lift == "none" else largest_lifted(self.lift, self.lift_width or self.width)
        columns: ColumnsOption = self.columns or ("plain" if self.lift == "nystroem" else "sum")
        in_units = columns != "plain" and self.lift == "none"
        if bits is None:
            bits = COLUMN_BITS if in_units else fraction_bits_for(summed)
        if max_rows is None and in_units:
            max_rows = DEFAULT_MAX_ROWS
        elif max_rows is None:
            room = rows_that_fit(summed, require_whole("fraction_bits", bits, 0, 62)) // n
            max_rows = max(1, min(DEFAULT_MAX_ROWS, room))
        return Agreement(
            name=self.name,
            sites=sites,
            classes=tuple(map(same_class, require_class_names(self.classes))),
            width=self.width,
            backbone=None if self.backbone is None else backbone_reference(self.backbone),
            encoder_digest=self.encoder_digest,
            encoder_size=self.encoder_size,
            columns=columns,
            column_offsets=None if self.column_offsets is None else tuple(self.column_offsets),
            column_exponents=None if self.column_exponents is None else tuple(self.column_exponents),
            largest_feature=largest,
            lift=self.lift,
            lift_width=self.lift_width,
            lift_seed=self.lift_seed,
            lift_bandwidth=self.lift_bandwidth,
            head=self.head,
            gradient_rounds=self.gradient_rounds,
            prior=self.prior,
            alpha=self.alpha,
            beta=self.beta,
            standardize=self.standardize,
            intercept=self.intercept,
            seed=self.seed,
            fraction_bits=bits,
            only_local_classes=self.only_local_classes,
            secure_sum=self.secure_sum,
            quorum=quorum,
            threshold=threshold,
            dishonest_sites=self.dishonest_sites,
            few_rows=self.few_rows,
            deadline=self.deadline,
            max_rows=max_rows,
        )


@dataclass(frozen=True)
class InitSummary:
    """What was made, for the coordinator's people."""

    directory: Path
    agreement: Agreement
    authority: Certificate
    address: str
    roster: Roster | None  # where the keys were made here
    places: Mapping[str, Path]  # what each site must get: its folder, with its key in it; else its first parcel
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


def init(directory: str | Path, settings: InitSettings) -> InitSummary:
    """Make the federation's folder. Nothing is left behind where this fails."""
    directory = Path(directory).absolute()
    require_free(directory)
    require_folder(directory.parent)
    agreement = settings.agreement()
    hosts = tuple(map(require_host, settings.hosts))
    here = all(map(is_loopback, hosts))
    make_keys = here if settings.make_keys is None else settings.make_keys
    address = format_address(hosts[0] if hosts else "127.0.0.1", require_port(settings.port))
    roster = None
    with beside(directory) as draft:
        draft.chmod(0o700)
        make_authority(draft, agreement.name)
        make_server_certificate(draft, hosts, settings.days)
        (draft / "state").mkdir(mode=0o700)
        write_private(draft / agreement_file.FILE, agreement.to_text().encode("utf-8"))
        authority = read_authority(draft / "ca" / AUTHORITY)
        parcels = {name: Parcel(name, address, agreement, authority) for name in agreement.sites}
        if make_keys:
            places = {name: directory / f"site-{name}" for name in agreement.sites}
            roster = _make_sites(draft, agreement, parcels)
        else:
            places = {name: first_parcel(directory, name) for name in agreement.sites}
            (draft / PARCELS).mkdir(mode=0o700)
            for name, parcel in parcels.items():
                write_private(first_parcel(draft, name), parcel.to_text().encode("utf-8"))
        take_free_place(draft, directory)
    warnings = (*agreement.warnings, *([_KEYS_HERE] if make_keys and not here else ()))
    return InitSummary(directory, agreement, authority, address, roster, places, warnings)


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
