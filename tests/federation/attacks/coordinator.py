"""A coordinator that cheats: all that went through its hands, and what can be done with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

from fedhip.federation.agreement.credentials import PrivateKey, public_key_of, sign, site_key_of
from fedhip.federation.agreement.init import init
from fedhip.federation.agreement.roster import Roster
from fedhip.federation.secure_sum import Collector, Member
from fedhip.federation.sums.vector import Vector

SITES, VICTIM = ("a", "b", "c", "d"), "c"
SESSION, CONTEXT = bytes(32), b"the agreement"


def federation(folder: Path, *hosts: str) -> tuple[Path, dict[str, Path]]:
    """The coordinator's folder, with all that went through its hands, and the sites' folders."""
    fed = folder / "fed"
    init(fed, name="study", sites=SITES, classes=["x", "y"], width=4, hosts=hosts)
    if (fed / "roster.json").exists():
        return fed, {site: fed / f"site-{site}" for site in SITES}
    from fedhip.federation.agreement.enrollment import accept_first, enroll, first_parcel
    from fedhip.federation.agreement.parcel import Parcel

    folders = {site: folder / site for site in SITES}
    for site, own in folders.items():
        reply = accept_first(Parcel.read(first_parcel(fed, site)), own)
        (fed / reply.name).write_bytes(reply.read_bytes())
    enroll(fed, sorted(fed.glob("reply-*.json")))
    return fed, folders


def private_keys(fed: Path) -> list[PrivateKey]:
    """Every private key in the coordinator's files, whatever their names."""
    found = []
    for path in fed.rglob("*"):
        for load in (load_pem_private_key, load_ssh_private_key):
            try:
                key = load(path.read_bytes(), None)
            except (ValueError, TypeError, OSError, UnsupportedAlgorithm):
                continue
            assert isinstance(key, ec.EllipticCurvePrivateKey)
            found.append(key)
    assert len(found) >= 2  # the authority's and the server's: the search finds what it looks for
    return found


def keys_of_sites(fed: Path, roster: Roster) -> dict[str, PrivateKey]:
    """Those among them that are a site's."""
    owners = {roster.owner(public_key_of(key)): key for key in private_keys(fed)}
    return {owner: key for owner, key in owners.items() if owner is not None}


def unmask(victim: Path, roster: Roster, keys: Mapping[str, PrivateKey]) -> tuple[Vector, Vector]:
    """The victim's vector, and what the server makes of a secure sum in which it plays all the others."""
    signers = {VICTIM: site_key_of(victim), **{site: keys[site] for site in roster.names if site != VICTIM}}
    secret = np.random.default_rng(0).integers(0, 2**64, 30, dtype=np.uint64)
    vectors = {site: secret if site == VICTIM else np.zeros_like(secret) for site in roster.names}
    collector = Collector(roster.keys, SESSION, CONTEXT, 3)
    members = {
        site: Member.begin(
            site=site,
            roster=roster.keys if site == VICTIM else {s: public_key_of(key) for s, key in signers.items()},
            sign=lambda data, key=key: sign(key, data),  # type: ignore[misc]
            session=SESSION,
            context=CONTEXT,
            minimum=3,
            threshold=3,
        )
        for site, key in signers.items()
    }
    sent = {site: member.keys() for site, member in members.items()}
    sealed = {VICTIM: members[VICTIM].share(sent)}  # here a victim refuses keys that no site of its roster signed
    sealed |= {site: member.share(sent) for site, member in members.items() if site != VICTIM}
    for site, message in sent.items():
        collector.keys(site, message)
    collector.cohort()
    for site in members:
        collector.shares(site, sealed[site])
    for site, member in members.items():
        collector.add(site, *member.mask(vectors[site], collector.dealt_to(site)))
    survivors = collector.survivors()
    for site, member in members.items():
        collector.unmask(site, member.unmask(survivors, {}))
    return secret, collector.result()
