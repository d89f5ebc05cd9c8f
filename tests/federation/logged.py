"""What no log may hold: rows, features, statistics and keys, however they are written down."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np

from fedhip.federation.agreement.agreement import Agreement
from tests.federation.samples import rows_of
from tests.federation.test_secrecy import holds, traces

__all__ = ["holds", "require_objects", "secrets_of"]


def secrets_of(folder: Path) -> dict[str, bytes]:
    """Of a federation of the samples' sites: every value of every row as text and as bytes, and every private key."""
    agreement = Agreement.read(folder / "federation.toml")
    found: dict[str, bytes] = {}
    for site in agreement.sites:
        found |= traces(site, agreement)
        for place, value in np.ndenumerate(rows_of(site)[0]):
            texts = (repr(float(value)), f"{value:.6f}", f"{value:.5g}", f"{value:.4f}", str(np.float32(value)))
            found |= {f"{site}: {place} as {text}": text.encode() for text in texts if len(text) > 5}
            found[f"{site}: {place} as bytes"] = value.tobytes().hex().encode()
    for path in (*folder.rglob("key"), *folder.rglob("*.key"), *folder.rglob("*.secret")):
        content = path.read_bytes()
        parts = [line for line in content.splitlines() if len(line) > 30 and not line.startswith(b"-----")]
        parts = parts or [content.hex().encode(), base64.b64encode(content)]
        found |= {f"{path}: line {number}": line for number, line in enumerate(parts)}
    return found


def require_objects(logs: dict[str, bytes]) -> None:
    """Each line is an object that says when, what and who."""
    for name, content in logs.items():
        for line in content.decode().splitlines():
            entry = json.loads(line)
            assert entry.keys() - {"error"} == {"time", "level", "part", "text"}, f"{name}: {line}"
            assert all(isinstance(value, str) for value in entry.values())
