"""Names that people give to clients, as names of files."""

import hashlib
from collections.abc import Iterable
from urllib.parse import quote

from fedhip.errors import InputError
from fedhip.utils.nearest import nearest

_LONGEST = 120


def file_name(client: str) -> str:
    """`<client>.safetensors`; what file systems do not take is written as %XX, a long name is cut and gets a hash."""
    quoted = quote(client, safe=" ()+,-.=@_", errors="surrogatepass")
    if quoted.startswith("."):
        quoted = f"%2E{quoted[1:]}"
    quoted = quoted or "%"  # which no other name becomes
    if len(quoted) <= _LONGEST:
        return f"{quoted}.safetensors"
    digest = hashlib.sha256(client.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{quoted[:_LONGEST]}-{digest}.safetensors"


def unknown_client(client: str, known: Iterable[str]) -> InputError:
    """An error that lists the names nearest to the one given."""
    names = list(known)
    near = near_names(client, names)
    listed = (
        f"; near it: {near}" if near else f"; there are {len(names)}: {', '.join(names[:5])}" + "…" * (len(names) > 5)
    )
    return InputError(f"the run has no client {client!r}{listed}")


def near_names(client: str, known: Iterable[str]) -> str:
    """Up to five names like the one given, for a message."""
    return ", ".join(repr(name) for name in nearest(client, known, 5))
