"""The server or a site as a service of systemd, which may write its own folders and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fedhip.federation.errors import SetupError

#: What a service that computes and talks over TCP can do without.
_HARDENING = """\
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
LockPersonality=yes
PrivateDevices={private_devices}
PrivateTmp={private_tmp}
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=read-only
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectSystem=strict
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
UMask=0077
"""


def unit(
    title: str, words: Sequence[str], *, owner: str, writes: Sequence[Path], state: Path, graphics: bool = False
) -> str:
    """The text of a unit that runs a command of `fedhip federation` until it is stopped.

    Parameters
    ----------
    title : str
        What it is, in the service's description.
    words : sequence of str
        The command's words after `fedhip federation`; paths among them are absolute.
    owner : str
        The user that the folders belong to.
    writes : sequence of Path
        All that it may write.
    state : Path
        Where the ledger of sums lies.
    graphics : bool
        Whether it may see devices, such as a GPU.
    """
    command = (sys.executable, "-m", "fedhip", "federation", *words)
    # A service with a /tmp of its own does not see files there.
    shared = any(Path(word).is_relative_to("/tmp") or Path(word).is_relative_to("/var/tmp") for word in words)  # noqa: S108
    writable = sorted({path.absolute() for path in (*writes, state)})
    lines = [
        "[Unit]",
        f"Description={_plain(title)}",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        f"ExecStart={' '.join(_quoted(word).replace('$', '$$') for word in command)}",
        f"User={owner}",
        f"Environment={_quoted(f'FEDHIP_STATE={state.absolute()}')}",
        "Environment=PYTHONUNBUFFERED=1",
        f"ReadWritePaths={' '.join(_quoted(str(path)) for path in writable)}",
        # Ctrl-C is how either ends in order.
        "KillSignal=SIGINT",
        "KillMode=mixed",
        "TimeoutStopSec=30",
        "Restart=on-failure",
        "RestartSec=10",
        *_HARDENING.format(private_devices=_yes(not graphics), private_tmp=_yes(not shared)).splitlines(),
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"


def _quoted(word: str) -> str:
    """A word that systemd reads as it is: % stands for something there, and quotes end a word."""
    return '"' + _plain(word).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _plain(text: str) -> str:
    if not text.isprintable():
        raise SetupError(f"systemd takes no line breaks or control characters, and {text!r} has some; rename it")
    return text.replace("%", "%%")
