"""Sites whose keys the coordinator takes back: the server lets them in no more, and asks them nothing.

`revoked.json` in the coordinator's folder names them. Agreement, roster and fingerprint stay: the other sites count
such a site as one that never comes, and the quorum is what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from fedhip.federation.agreement.names import shown
from fedhip.federation.errors import SetupError
from fedhip.federation.operations.paths import ServerPaths
from fedhip.federation.operations.supervisor import write_json
from fedhip.federation.server.cohort import REVOKED, revoked_in
from fedhip.federation.transport.callers import public_pem
from fedhip.federation.transport.control import Control
from fedhip.utils.nearest import did_you_mean


def keys_let_in(paths: ServerPaths) -> dict[str, bytes]:
    """The keys of the roster, but for those that were revoked."""
    out = revoked_in(paths.path)
    return {name: key for name, key in paths.roster().keys.items() if name not in out}


def revoke(paths: ServerPaths, site: str) -> list[str]:
    """Revoke a site's key, for good: the engine takes it no second time. The sites that are left.

    A server that runs knows it at once.
    """
    roster = paths.roster()
    if site not in roster.keys:
        raise SetupError(f"there is no site {shown(site)} in the roster{did_you_mean(site, roster.keys)}")
    out = revoked_in(paths.path)
    out.setdefault(site, datetime.now(UTC).isoformat(timespec="seconds"))
    _write(paths.path, out)
    left = keys_let_in(paths)
    if paths.state.ready.is_file():
        announce(paths, left, paths.control_port())
    return list(left)


def announce(paths: ServerPaths, keys: Mapping[str, bytes], port: int) -> None:
    """Have the proxy and the engine let in these sites and no others."""
    write_json(paths.callers, {name: public_pem(key) for name, key in keys.items()})
    with Control(port, paths.authority, paths.state.secret) as control:
        numbers = control.register(keys)
    write_json(paths.nodes, {str(number): name for number, name in numbers.items()})


def _write(folder: Path, out: Mapping[str, str]) -> None:
    write_json(folder / REVOKED, {"schema": 1, "sites": dict(out)})
