"""The server's authority is renewed before the round: in the folder of no site that does not accept it.

    coordinator   renew --authority   a new authority and certificate, and new parcels with them
    every site    accept              the new authority in place of the old one, once the fingerprint was compared again

As a site's key is changed (`rotation.py`). The old authority's certificates are worth nothing at a site that has
accepted the new one, and an older parcel is refused there. Once a round was begun the authority stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedhip.federation.agreement.credentials import (
    SERVER_DAYS,
    hosts_of,
    make_authority,
    make_server_certificate,
    read_authority,
)
from fedhip.federation.agreement.enrollment import PARCELS, Enrolled, first_parcel, second_parcel
from fedhip.federation.agreement.fingerprint import fingerprint_of
from fedhip.federation.agreement.parcel import Parcel
from fedhip.federation.agreement.rotation import require_no_round
from fedhip.federation.errors import SetupError
from fedhip.federation.operations.paths import ServerPaths
from fedhip.runs.draft import temporary_folder
from fedhip.utils.files import write_private


def renew_authority(paths: ServerPaths, hosts: Sequence[str] = (), days: int = SERVER_DAYS) -> Enrolled:
    """Another authority, the server's certificate from it, and each site's parcels; the roster stays as it is.

    Whatever breaks this off, it can be done again.
    """
    require_no_round(paths)
    if not (paths.path / PARCELS).is_dir():
        raise SetupError(
            "the sites' keys were made here, and there are no parcels by which sites could accept another authority; "
            "make a new federation with init"
        )
    agreement, roster = paths.agreement(), paths.roster()
    with temporary_folder(paths.authority.parent) as draft:
        make_authority(draft, agreement.name, after=read_authority(paths.authority))
        make_server_certificate(draft, hosts or hosts_of(paths.certificate), days)
        authority = read_authority(draft / paths.authority.relative_to(paths.path))
        for site in agreement.sites:
            parcel = replace(Parcel.read(first_parcel(paths.path, site)), authority=authority)
            write_private(first_parcel(paths.path, site), parcel.to_text().encode("utf-8"))
            write_private(second_parcel(paths.path, site), replace(parcel, roster=roster).to_text().encode("utf-8"))
        for path in (paths.authority.with_suffix(".key"), paths.authority, paths.key, paths.certificate):
            (draft / path.relative_to(paths.path)).replace(path)
    parcels = {site: second_parcel(paths.path, site) for site in agreement.sites}
    return Enrolled(roster, fingerprint_of(agreement, roster, authority), parcels)
