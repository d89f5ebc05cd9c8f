"""What a session cannot start with, and what a member and a collector keep."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedhip.federation.secure_sum import Collector, Member, Reason, SecureSumError
from fedhip.federation.secure_sum.terms import Terms
from tests.federation.secure_sum.party import CONTEXT, SESSION, Party, openssh, roster_of, signer, vectors_of

FIVE = list("abcde")
TERMS = Terms.of(roster_of(FIVE), SESSION, CONTEXT, 3)


def test_terms_that_cannot_be() -> None:
    def begin(
        roster: dict[str, bytes] | None = None,
        threshold: int = 3,
        minimum: int = 2,
        site: str = "a",
        session: bytes = SESSION,
        context: bytes = CONTEXT,
    ) -> Member:
        return Member.begin(
            site=site,
            roster=roster_of(FIVE) if roster is None else roster,
            sign=signer("a"),
            session=session,
            context=context,
            minimum=minimum,
            threshold=threshold,
        )

    def refused(reason: Reason, site: str | None = None, **terms: object) -> None:
        with pytest.raises(SecureSumError) as caught:
            begin(**terms, **({"site": site} if site else {}))  # type: ignore[arg-type]
        assert (caught.value.reason, caught.value.site) == (reason, site)

    p256 = ec.generate_private_key(ec.SECP256R1()).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    five = roster_of(FIVE)
    for roster in (
        {"a": five["a"]},
        {},
        five | {"a": p256},
        five | {"a": five["b"]},
        five | {"a": b"garbage"},
        five | {"a": b"-----BEGIN garbage"},
        five | {"a/b": five["a"]},
        five | {"": openssh("another")},
        five | {"x" * 65: openssh("another")},
    ):
        refused(Reason.ROSTER, roster=roster)
        with pytest.raises(SecureSumError) as caught:
            Collector(roster, SESSION, CONTEXT, 3)
        assert caught.value.reason is Reason.ROSTER
    for threshold in (-1, 0, 1, 2, 6):
        refused(Reason.THRESHOLD, threshold=threshold)
    refused(Reason.THRESHOLD, roster=roster_of("abcd"), threshold=2)
    for minimum in (-1, 0, 1):
        refused(Reason.MINIMUM, minimum=minimum)
    refused(Reason.SESSION, session=bytes(31))
    refused(Reason.SESSION, context=bytes(4097))
    refused(Reason.UNKNOWN_SITE, site="z")


def test_pem_and_openssh_with_comments_are_one_roster() -> None:
    pem = {
        site: ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP384R1(), TERMS.points[site]).public_bytes(
            Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
        )
        for site in FIVE
    }
    commented = {site: key + b" someone@somewhere" for site, key in roster_of(FIVE).items()}
    assert Terms.of(pem, SESSION, CONTEXT, 3).digest == TERMS.digest == Terms.of(commented, SESSION, CONTEXT, 3).digest


def test_a_site_whose_key_is_not_the_one_in_the_roster_learns_it_first() -> None:
    member = Member.begin(
        site="a", roster=roster_of(FIVE), sign=signer("b"), session=SESSION, context=CONTEXT, minimum=2, threshold=3
    )
    with pytest.raises(SecureSumError) as caught:
        member.keys()
    assert (caught.value.reason, caught.value.site) == (Reason.SIGNATURE, "a")


def test_states_that_are_damaged_or_of_the_other_side() -> None:
    party = Party(FIVE)
    party.until_shares()
    for state in (party.states["a"], party.collector.to_bytes()):
        for damaged in (b"", state[:-1], state + b"\0", state[:100] + bytes([state[100] ^ 1]) + state[101:]):
            with pytest.raises(SecureSumError) as refused:
                Member.from_bytes(damaged, signer("a"))
            assert refused.value.reason is Reason.STATE
            with pytest.raises(SecureSumError) as caught:
                Collector.from_bytes(damaged)
            assert caught.value.reason is Reason.STATE
    with pytest.raises(SecureSumError):
        Member.from_bytes(party.collector.to_bytes(), signer("a"))
    with pytest.raises(SecureSumError):
        Collector.from_bytes(party.states["a"])


def test_a_member_forgets_what_it_no_longer_needs() -> None:
    party, vectors = Party(FIVE), vectors_of(FIVE)
    party.until_shares()
    secrets = party.member("a")._secrets
    assert secrets is not None
    assert secrets.seed in party.states["a"]
    assert "seed" not in repr(secrets)
    party.mask("a", vectors["a"], party.collector.dealt_to("a"))
    shares = party.member("a")._shares
    for secret in (secrets.seed, secrets.mask, secrets.channel):
        assert secret not in party.states["a"]
    party.unmask("a", FIVE, {})
    for held in shares.values():
        assert held.seed not in party.states["a"]
        assert held.key not in party.states["a"]
