"""Where downloads and features are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """`$FEDHIP_CACHE`, or `fedhip` in the user's cache folder."""
    own = os.environ.get("FEDHIP_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedhip"
