"""`roster.json`: the sites of a federation and their public keys.

The secure sum stands on it: a site that checked the roster cannot be shown a cohort of the server's own invention. So
its fingerprint, together with that of the agreement, is compared by telephone (`fingerprint.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fedhip.federation.agreement.credentials import require_public_key
from fedhip.federation.agreement.fields import LARGEST_FILE, digest_of, require_schema
from fedhip.federation.agreement.names import require_federation_name, require_site_names, shown
from fedhip.federation.errors import FederationError, SetupError
from fedhip.utils.text import json_text

SCHEMA = 1
FILE = "roster.json"

_REMEDY = f"get {FILE} from the coordinator again"


@dataclass(frozen=True)
class Roster:
    """Public keys by site, in the order of names; `retired` are keys that sites had before, and nobody may have."""

    federation: str
    keys: Mapping[str, bytes]
    retired: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        require_federation_name(self.federation)
        names = sorted(require_site_names(self.keys))
        keys: dict[str, bytes] = {}
        for name in names:
            try:
                key = require_public_key(self.keys[name])
            except SetupError as error:
                raise SetupError(f"site {name!r}: {error}") from None
            if twin := next((other for other, known in keys.items() if known == key), None):
                raise SetupError(f"the sites {twin!r} and {name!r} have the same key; each site needs its own")
            keys[name] = key
        object.__setattr__(self, "keys", keys)
        retired = tuple(sorted({require_public_key(key) for key in self.retired}))
        if back := next((name for name, key in keys.items() if key in retired), None):
            raise SetupError(f"the key of the site {back!r} was retired; the site makes another with rotate-key")
        object.__setattr__(self, "retired", retired)

    @property
    def names(self) -> tuple[str, ...]:
        """The sites."""
        return tuple(self.keys)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The roster in this file."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                data = file.read(LARGEST_FILE + 1)
        except FileNotFoundError:
            raise SetupError(f"there is no file {path}; {_REMEDY}") from None
        except OSError as error:
            raise SetupError(f"{path} cannot be read ({error.strerror}); {_REMEDY}") from None
        if len(data) > LARGEST_FILE:
            raise SetupError(f"{path} is larger than {LARGEST_FILE >> 20} MB; {_REMEDY}")
        return cls.from_text(data, str(path))

    @classmethod
    def from_text(cls, data: bytes, where: str) -> Self:
        """The roster in the text of a file."""
        try:
            content = json.loads(data.decode("utf-8"), object_pairs_hook=once)
        except (ValueError, RecursionError) as error:
            raise SetupError(f"{where} is not a roster ({error}); {_REMEDY}") from None
        try:
            return cls(*_parts(content))
        except FederationError as error:
            raise SetupError(f"{where}: {error}") from None

    def to_text(self) -> str:
        """roster.json."""
        return json_text(self._content(), indent=1) + "\n"

    def digest(self) -> str:
        """SHA-256 of names and keys, in one form whatever the file looks like."""
        return digest_of("roster", self._content())

    def owner(self, public: bytes) -> str | None:
        """The site that has this key."""
        return next((name for name, key in self.keys.items() if key == public), None)

    def _content(self) -> dict[str, Any]:
        sites = {name: {"key": key.decode("ascii")} for name, key in self.keys.items()}
        retired = {"retired": [key.decode("ascii") for key in self.retired]} if self.retired else {}
        return {"schema": SCHEMA, "federation": self.federation, "sites": sites, **retired}


def _parts(content: Any) -> tuple[str, dict[str, bytes], tuple[bytes, ...]]:
    if not isinstance(content, dict) or set(content) - {"retired"} != {"schema", "federation", "sites"}:
        raise SetupError("it has not the keys 'schema', 'federation' and 'sites'; get the file again")
    require_schema(content["schema"], SCHEMA, "it")
    sites = content["sites"]
    if not isinstance(sites, dict):
        raise SetupError(f"'sites' is {shown(sites)}; get the file again")
    keys = {}
    for name, entry in sites.items():
        if not isinstance(entry, dict) or set(entry) != {"key"} or not isinstance(entry["key"], str):
            raise SetupError(f"site {shown(name)} has not just one text 'key'; get the file again")
        keys[name] = entry["key"].encode("utf-8", "surrogatepass")
    retired = content.get("retired", [])
    if not isinstance(retired, list) or not all(isinstance(key, str) for key in retired):
        raise SetupError(f"'retired' is {shown(retired)}; get the file again")
    return content["federation"], keys, tuple(key.encode("utf-8", "surrogatepass") for key in retired)


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Readers differ in which of two equal keys they take; so there may be one."""
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key is there twice")
    return content
