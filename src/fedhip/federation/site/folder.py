"""A site's folder, opened and checked against itself.

federation.toml  ca.crt  connection.toml     from the coordinator's first parcel
roster.json                                  from its second, once the fingerprint was compared
site.toml                                    the site's own policy
key                                          the site's private key, made here
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from fedhip.federation.agreement import agreement as agreement_file
from fedhip.federation.agreement import policy as policy_file
from fedhip.federation.agreement import roster as roster_file
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.credentials import PrivateKey, public_key_of, read_authority, require_host, site_key_of
from fedhip.federation.agreement.fields import read_toml, require_known
from fedhip.federation.agreement.fingerprint import fingerprint_of
from fedhip.federation.agreement.names import shown
from fedhip.federation.agreement.policy import Policy
from fedhip.federation.agreement.roster import Roster
from fedhip.federation.errors import SetupError
from fedhip.utils.toml import write_toml

CONNECTION, AUTHORITY, KEY = "connection.toml", "ca.crt", "key"
_FROM_COORDINATOR = (agreement_file.FILE, AUTHORITY, CONNECTION)


@dataclass(frozen=True)
class SiteFolder:
    """Everything a site needs to take part; `warnings` are sentences for its people."""

    path: Path
    name: str
    address: str
    agreement: Agreement
    roster: Roster
    policy: Policy
    key: PrivateKey = field(repr=False)
    ca: Path
    warnings: tuple[str, ...] = ()

    @property
    def key_path(self) -> Path:
        """The file of the private key, for the engine."""
        return self.path / KEY

    @property
    def fingerprint(self) -> str:
        """What the sites compare by telephone."""
        return fingerprint_of(self.agreement, self.roster, read_authority(self.ca))


def open_site(folder: str | Path) -> SiteFolder:
    """The site in this folder, if all its files are there and belong together."""
    path = Path(folder).absolute()
    _require_files(path)
    name, address = read_connection(path / CONNECTION)
    agreement = Agreement.read(path / agreement_file.FILE)
    roster = Roster.read(path / roster_file.FILE)
    policy = Policy.read(path / policy_file.FILE)
    agreement.require_roster(roster)
    agreement.require_site(name)
    read_authority(path / AUTHORITY)
    key = site_key_of(path)
    _require_own_key(path / KEY, key, name, roster)
    policy.require_agreement(agreement)
    return SiteFolder(path, name, address, agreement, roster, policy, key, path / AUTHORITY, agreement.warnings)


def write_connection(site: str, host: str, port: int) -> str:
    """connection.toml."""
    heading = "Who this site is, and where its server listens."
    return write_toml({"site": site, "address": format_address(host, port)}, heading)


def read_connection(path: Path) -> tuple[str, str]:
    """The site's name and the server's address."""
    content = read_toml(path, f"get {CONNECTION} from the coordinator")
    require_known(content, ("site", "address"), str(path))
    for key in ("site", "address"):
        if not isinstance(content.get(key), str):
            raise SetupError(f"{path}: {key} is {shown(content.get(key))}; get the file from the coordinator")
    try:
        parse_address(content["address"])
    except SetupError as error:
        raise SetupError(f"{path}: address is {shown(content['address'])}: {error}") from None
    return content["site"], content["address"]


def format_address(host: str, port: int) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    host, port = require_host(host), require_port(port)
    try:
        bracketed = ipaddress.ip_address(host).version == 6
    except ValueError:
        bracketed = False
    return f"[{host}]:{port}" if bracketed else f"{host}:{port}"


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of what `format_address` writes."""
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5):
        raise SetupError("it has no port; give host:port")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if bracketed != (":" in host):
        raise SetupError("an IPv6 address, and nothing else, stands in brackets; give [address]:port")
    return require_host(host), require_port(int(port))


def require_port(port: object) -> int:
    """The port, if it is one."""
    if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65_535:
        raise SetupError(f"port is {shown(port)}; give a whole number from 1 to 65535")
    return port


def _require_files(path: Path) -> None:
    if not path.is_dir():
        raise SetupError(f"there is no folder {path}; give the folder that accept made")
    if (path / "server").is_dir():
        own = ", ".join(folder.name for folder in sorted(path.glob("site-*"))[:3])
        raise SetupError(f"{path} is the coordinator's folder; give a site's, such as {own} in it")
    remedies = []
    if missing := [name for name in _FROM_COORDINATOR if not (path / name).is_file()]:
        remedies.append(f"{', '.join(missing)} (get it from the coordinator)")
    if not (path / roster_file.FILE).is_file():
        remedies.append(f"{roster_file.FILE} (accept the coordinator's second parcel: fedhip federation accept PARCEL)")
    if not (path / policy_file.FILE).is_file():
        remedies.append(f"{policy_file.FILE} (an empty file has the safe values)")
    if not (path / KEY).is_file():
        remedies.append(f"{KEY} (the site's private key: restore it, readable by its owner only)")
    if remedies:
        raise SetupError(f"the folder {path} of this site lacks {'; '.join(remedies)}")


def _require_own_key(path: Path, key: PrivateKey, name: str, roster: Roster) -> None:
    public = public_key_of(key)
    if public == roster.keys[name]:
        return
    owner = roster.owner(public)
    whose = f"that of the site {owner!r}" if owner else "not in the roster"
    raise SetupError(
        f"the key {path} is {whose}, and this folder is that of the site {name!r}; put the key of {name!r} there, or "
        "have the coordinator make the federation with this one"
    )
