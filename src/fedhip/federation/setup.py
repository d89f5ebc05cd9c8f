"""What `fedhip federation init` does: a folder for the coordinator, and in it one for each site.

    federation.toml  roster.json      the agreement and the public keys
    ca/  server/                      the authority, and the server's certificate
    site-NAME/                        what the site gets by a safe way
    state/                            the server's own

The folder is there whole, or not at all, and its owner alone can read it.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedhip.core.columns import COLUMN_BITS
from fedhip.core.fixedpoint import fraction_bits_for
from fedhip.features.devices import require_folder
from fedhip.federation import agreement as agreement_file
from fedhip.federation import policy as policy_file
from fedhip.federation import roster as roster_file
from fedhip.federation.agreement import (
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
from fedhip.federation.credentials import (
    SERVER_DAYS,
    fingerprint,
    make_authority,
    make_server_certificate,
    make_site_key,
    read_public_key,
    require_host,
    write_private,
)
from fedhip.federation.errors import CredentialError, FederationExistsError, SiteNameError
from fedhip.federation.names import near, require_class_names, require_site_names, same_class, shown
from fedhip.federation.places import command
from fedhip.federation.policy import Policy
from fedhip.federation.roster import Roster
from fedhip.federation.site_folder import AUTHORITY, CONNECTION, KEY, format_address, require_port, write_connection
from fedhip.runs.folder import beside

DEFAULT_PORT = 8443
#: Rows of one site, where the grid has room for so many. Who has more says so: nobody can see that a site made rows up,
#: and its weight in everybody's model is that of its rows.
DEFAULT_MAX_ROWS = 100_000


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
    site_keys: Mapping[str, Path] = field(default_factory=dict)  # public keys of sites that made their own
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
            deadline=self.deadline,
            max_rows=max_rows,
        )


@dataclass(frozen=True)
class SiteParcel:
    """What one site must get: this folder, by a safe way."""

    name: str
    folder: Path
    has_private_key: bool  # then the coordinator should delete the folder once the site has it
    key_fingerprint: str


@dataclass(frozen=True)
class InitSummary:
    """What was made, for the coordinator's people."""

    directory: Path
    agreement: Agreement
    roster: Roster
    address: str
    parcels: tuple[SiteParcel, ...]
    warnings: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        """The roster's, which each site compares with the coordinator's and with other sites' by telephone."""
        return self.roster.fingerprint

    @property
    def next_commands(self) -> tuple[tuple[str, str], ...]:
        """Who does what next: (where, command)."""
        return (
            ("here", command("serve", self.directory)),
            ("at each site", "fedhip federation site SITE_FOLDER --data DATA"),
            ("here", command("run", self.directory)),
        )


def init(directory: str | Path, settings: InitSettings) -> InitSummary:
    """Make the federation's folder. Nothing is left behind where this fails."""
    directory = Path(directory).absolute()
    _require_free(directory)
    require_folder(directory.parent)
    agreement = settings.agreement()
    hosts = tuple(map(require_host, settings.hosts))
    host, port = (hosts[0] if hosts else "127.0.0.1"), require_port(settings.port)
    given = _given_keys(settings.site_keys, agreement)
    with beside(directory) as draft:
        draft.chmod(0o700)
        make_authority(draft, agreement.name)
        make_server_certificate(draft, hosts, settings.days)
        (draft / "state").mkdir(mode=0o700)
        keys = {}
        for name in agreement.sites:
            folder = draft / f"site-{name}"
            folder.mkdir(mode=0o700)
            keys[name] = given[name] if name in given else make_site_key(folder / KEY)
        roster = Roster(agreement.name, keys)
        authority = (draft / "ca" / AUTHORITY).read_bytes()
        policy = Policy(minimum_cohort=min(Policy.minimum_cohort, len(agreement.sites)))
        shared = {agreement_file.FILE: agreement.to_text(), roster_file.FILE: roster.to_text()}
        _write_all(draft, shared)
        for name in agreement.sites:
            own = {CONNECTION: write_connection(name, host, port), policy_file.FILE: policy.to_text()}
            _write_all(draft / f"site-{name}", {**shared, **own})
            write_private(draft / f"site-{name}" / AUTHORITY, authority)
        _take_free_place(draft, directory)
    parcels = tuple(
        SiteParcel(name, directory / f"site-{name}", name not in given, fingerprint(keys[name]))
        for name in agreement.sites
    )
    return InitSummary(directory, agreement, roster, format_address(host, port), parcels, agreement.warnings)


def _given_keys(files: Mapping[str, Path], agreement: Agreement) -> dict[str, bytes]:
    keys: dict[str, bytes] = {}
    for name, path in files.items():
        if name not in agreement.sites:
            raise SiteNameError(f"there is a key for {shown(name)}, which is no site{near(name, agreement.sites)}")
        keys[name] = read_public_key(path)
        if twin := next((other for other in keys if other != name and keys[other] == keys[name]), None):
            raise CredentialError(f"the sites {twin!r} and {name!r} were given the same key; each site needs its own")
    return keys


def _write_all(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        write_private(folder / name, text.encode("utf-8"))


def _require_free(directory: Path) -> None:
    if directory.is_symlink() or directory.exists():
        raise FederationExistsError(f"{directory} exists; choose another folder: a federation is never replaced")


def _take_free_place(draft: Path, directory: Path) -> None:
    """A rename, which fails where somebody else was faster."""
    try:
        draft.rename(directory)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            _require_free(directory)
        raise
