"""What can be said to a site before it connects: all that the round would otherwise refuse, when others wait for it."""

from __future__ import annotations

from pathlib import Path

from fedhip.federation.errors import SetupError
from fedhip.federation.site.folder import SiteFolder
from fedhip.federation.site.rows import SiteRows
from fedhip.federation.site.state import SiteState


def require_ready(
    site: SiteFolder, data: Path, *, out: Path | None = None, weights: Path | None = None, device: str | None = None
) -> SiteRows:
    """The site's rows; refuse such as do not fit the agreement, and places and devices that are not there."""
    from fedhip.features.devices import resolve_device

    for path in filter(None, (data, weights)):
        if not path.exists():
            raise SetupError(f"there is no {path}; check the path")
    _require_out(site, site.path / "result" if out is None else out)
    resolve_device(device)
    cache = SiteState(site.path).cache
    return SiteRows.read(data, site.name, site.agreement, site.policy, cache=cache, device=device)


def _require_out(site: SiteFolder, out: Path) -> None:
    """A free place, or the result of this very agreement: the site may have been started again meanwhile."""
    from fedhip.runs import Run
    from fedhip.runs.draft import require_place

    require_place(out, force=True)
    if not out.is_dir() or not any(out.iterdir()):
        return
    if Run.open(out).config.get("agreement") != site.agreement.digest():
        raise SetupError(f"{out} holds another run, which the round would replace; choose another --out")
