"""Names of federations, sites and classes: which are allowed, and which are the same."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from fedhip.federation.errors import SetupError
from fedhip.federation.status_codes import SiteCode, SiteRefusalError
from fedhip.utils.nearest import did_you_mean
from fedhip.utils.text import readable

LONGEST = 64
#: They become names of folders, certificates and nodes.
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST - 1}}}")
_RULE = f"use letters a to z, digits, '.', '_' and '-', at most {LONGEST}, the first a letter or a digit"


def require_federation_name(name: object) -> str:
    """The name, if a federation can have it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SetupError(f"name is {shown(name)}; {_RULE}")
    return name


def require_site_name(name: object) -> str:
    """The name, if a site can have it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SetupError(f"a site cannot be called {shown(name)}; {_RULE}")
    return name


def require_site_names(names: Iterable[object]) -> tuple[str, ...]:
    """At least two names, each allowed; names that differ only in case would share a folder on some disks."""
    checked = tuple(require_site_name(name) for name in names)
    seen: dict[str, str] = {}
    for name in checked:
        if (other := seen.get(name.lower())) == name:
            raise SetupError(f"the site {name!r} is there twice; give each site once")
        if other is not None:
            raise SetupError(f"the sites {other!r} and {name!r} differ only in case; rename one of them")
        seen[name.lower()] = name
    if len(checked) < 2:
        raise SetupError(f"sites are {list(checked)}; a federation needs at least two")
    return checked


def require_class_names(names: Iterable[object]) -> tuple[str, ...]:
    """At least two names, different, of visible characters."""
    checked: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str) or not name or not name.isprintable() or name != name.strip():
            raise SetupError(
                f"a class cannot be called {shown(name)}; use visible characters, without spaces at the ends"
            )
        if same_class(name) in checked:
            raise SetupError(f"the class {name!r} is there twice; give each class once")
        checked[same_class(name)] = name
    if len(checked) < 2:
        raise SetupError(f"the classes are {list(checked.values())}; give at least two")
    return tuple(checked.values())


def same_class(name: str) -> str:
    """What two spellings of a name have in common: some systems write 'é' as one character, some as two."""
    return unicodedata.normalize("NFC", name)


def class_positions(own: Sequence[str], agreed: Sequence[str], mapping: Mapping[str, str]) -> tuple[int, ...]:
    """Where each of a site's classes stands in the agreed list, by the site's mapping where it has one."""
    positions = {same_class(name): position for position, name in enumerate(agreed)}
    renamed = {same_class(name): target for name, target in mapping.items()}
    found = []
    for name in own:
        target = renamed.get(same_class(name), name)
        if same_class(target) not in positions:
            guess = near(target, agreed)
            raise SiteRefusalError(
                SiteCode.CLASSES,
                f"the class {shown(name)} is none of the {len(agreed)} agreed ones{guess}; rename it, or map it in "
                "site.toml under [class_names]",
            )
        found.append(positions[same_class(target)])
    return tuple(found)


def near(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or the list, for a message."""
    names = list(known)
    return did_you_mean(name, names, f"; there are {', '.join(names[:8])}" + ", …" * (len(names) > 8))


def shown(value: object) -> str:
    """A value for a message: short, and of characters that can be written anywhere."""
    text = readable(repr(value))
    return text if len(text) <= 80 else f"{text[:79]}…"
