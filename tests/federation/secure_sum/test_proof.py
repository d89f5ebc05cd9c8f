"""The proof that a dealer has cheated: anybody can check it, and nobody can make one against an honest dealer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedhip.federation.secure_sum import Reason, SecureSumError
from fedhip.federation.secure_sum.deal import Deal, encode_proof
from fedhip.federation.secure_sum.encoding import pack, unpack
from fedhip.federation.secure_sum.shamir import PRIME, SHARE_BYTES
from fedhip.federation.secure_sum.terms import Terms
from tests.federation.secure_sum.party import CONTEXT, SESSION, Party, roster_of, signer, vectors_of
from tests.federation.secure_sum.test_cheating_site import FIVE, deal_from_another_secret

TERMS = Terms.of(roster_of(FIVE), SESSION, CONTEXT, 3)
LIAR = "c"


def unmasked(monkeypatch: pytest.MonkeyPatch, which: int | None, gone: str = "") -> Party:
    """A party in which all have revealed; the liar's shares of its seed (0) or of its key (1) are wrong, if any are."""
    party, vectors = Party(FIVE), vectors_of(FIVE)
    if which is None:
        party.until_shares()
    else:
        deal_from_another_secret(monkeypatch, party, LIAR, which)
    for site in set(FIVE) - set(gone):
        party.collector.add(site, *party.mask(site, vectors[site], party.collector.dealt_to(site)))
    survivors = party.collector.survivors()
    for site in survivors if gone else []:
        party.collector.signature(site, party.agree(site, survivors))
    for site in survivors:
        party.collector.unmask(site, party.unmask(site, survivors, party.collector.signatures()))
    return party


def refused(party: Party, proof: bytes, reason: Reason, dealer: str = LIAR) -> None:
    with pytest.raises(SecureSumError) as caught:
        party.member("a").require_proof(dealer, proof)
    assert (caught.value.reason, caught.value.site) == (reason, dealer)


@pytest.mark.parametrize(("which", "gone"), [(0, ""), (1, LIAR)])
def test_everybody_can_check_it(monkeypatch: pytest.MonkeyPatch, which: int, gone: str) -> None:
    party = unmasked(monkeypatch, which, gone)
    party.restart_server()
    with pytest.raises(SecureSumError, match=f"site '{LIAR}'.*do not yield what it announced"):
        party.collector.result()
    proof = party.collector.proof(LIAR)
    for site in set(FIVE) - {LIAR}:
        party.member(site).require_proof(LIAR, proof)
    refused(party, proof, Reason.OTHER_SITE, "b")
    refused(party, proof, Reason.UNKNOWN_SITE, "z")
    others = (Party(FIVE, session=bytes(32)), Party(FIVE, context=b"another question"), Party(FIVE, threshold=4))
    for other in others:
        refused(other, proof, Reason.OTHER_SESSION)


def test_nobody_can_make_one_against_an_honest_dealer(monkeypatch: pytest.MonkeyPatch) -> None:
    party = unmasked(monkeypatch, None)
    collector = party.collector
    refused(party, collector.proof(LIAR), Reason.NO_PROOF)
    deal, _ = collector._deal(LIAR)
    shares = {site: collector._answers[site][LIAR] for site in FIVE}
    three = {site: shares[site] for site in "abd"}
    wrong = {**three, "a": shares["b"]}
    for made_up in (wrong, {**three, "a": bytes(SHARE_BYTES)}, {site: shares[site] for site in "ab"}, shares):
        refused(party, encode_proof(TERMS, deal, b"seed", made_up), Reason.NO_PROOF)
    refused(party, encode_proof(TERMS, deal, b"key", three), Reason.NO_PROOF)
    refused(party, encode_proof(TERMS, deal, b"seed", {**three, "z": shares["b"]}), Reason.NO_PROOF)
    refused(party, encode_proof(TERMS, deal, b"both", three), Reason.MALFORMED)
    beyond = (PRIME + 1).to_bytes(SHARE_BYTES, "little")
    refused(party, encode_proof(TERMS, deal, b"seed", {**three, "a": beyond}), Reason.NO_PROOF)
    # Another announcement, or other commitments, are not what the dealer has signed.
    for other in (replace(deal, commitment=bytes(32)), replace(deal, shares=bytes(len(deal.shares)))):
        refused(party, encode_proof(TERMS, other, b"seed", three), Reason.SIGNATURE)
    signature = signer("b")(deal.signed(TERMS))
    refused(party, encode_proof(TERMS, replace(deal, signature=signature), b"seed", three), Reason.SIGNATURE)
    message = collector.proof(LIAR)
    for data in (b"", message[:-1], message + b"x", pack(unpack(message)[:2])):
        refused(party, data, Reason.MALFORMED)


def test_a_dealer_that_began_again_is_not_framed_by_its_two_deals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder was restored, so that it dealt twice under the same terms: each deal names its own announcement."""
    first, second = unmasked(monkeypatch, None), unmasked(monkeypatch, None)
    deals = [party.collector._deal(LIAR)[0] for party in (first, second)]
    shares = [{site: party.collector._answers[site][LIAR] for site in "abd"} for party in (first, second)]
    assert deals[0].signed(TERMS) != deals[1].signed(TERMS)
    for deal in deals:
        for made_up in (*shares, {**shares[0], "a": shares[1]["a"]}):
            refused(first, encode_proof(TERMS, deal, b"seed", made_up), Reason.NO_PROOF)


def test_the_server_takes_no_deal_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    party = Party(FIVE)
    party.until_keys()
    sealed = party.share("a", party.collector.cohort())
    deal = Deal.decode(sealed["a"], TERMS, "a")

    def signed(**changes: bytes) -> bytes:
        other = replace(deal, **changes)  # type: ignore[arg-type]
        return replace(other, signature=signer("a")(other.signed(TERMS))).encode(TERMS)

    for change in ({"mask": bytes(32)}, {"commitment": bytes(32)}, {"shares": bytes(len(deal.shares))}):
        with pytest.raises(SecureSumError) as caught:
            party.collector.shares("a", sealed | {"a": signed(**change)})
        assert caught.value.reason is Reason.OTHER_DEAL
    party.collector.shares("a", sealed | {"a": signed()})
