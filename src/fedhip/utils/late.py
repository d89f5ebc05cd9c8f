"""Names of a package that are imported when somebody asks for them.

torch takes two seconds to import. A site of a federation answers most questions without it, each in a process of its
own, and should not wait.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module


def late(package: str, **modules: str) -> Callable[[str], object]:
    """A module's `__getattr__` (PEP 562): for each module of the package, the names it gives, with spaces between."""
    where = {name: f"{package}.{module}" for module, names in modules.items() for name in names.split()}

    def get(name: str) -> object:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: object = getattr(import_module(where[name]), name)
        # Kept, and not only for speed: importing a module puts it where a function of its name belongs.
        setattr(sys.modules[package], name, found)
        return found

    return get
