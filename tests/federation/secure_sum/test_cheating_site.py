"""A site that lies, sends garbage or does not answer is named, and the others' sum is right or is not given at all."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhip.federation.secure_sum import Collector, Reason, SecureSumError, messages
from fedhip.federation.secure_sum import member as member_module
from fedhip.federation.secure_sum.messages import Keys, Shares, encode_answer, seed_commitment
from fedhip.federation.secure_sum.primitives import public_of
from fedhip.federation.secure_sum.shamir import SHARE_BYTES, split
from fedhip.federation.secure_sum.terms import Terms
from tests.drawing import examples
from tests.federation.secure_sum.party import CONTEXT, SESSION, Party, roster_of, signer, total, vectors_of

FIVE = list("abcde")
TERMS = Terms.of(roster_of(FIVE), SESSION, CONTEXT, 3)


def dropped(site: str, reason: Reason, action: Callable[..., object], *arguments: object) -> None:
    with pytest.raises(SecureSumError) as caught:
        action(*arguments)
    assert (caught.value.reason, caught.value.site) == (reason, site)
    assert repr(site) in str(caught.value)


def signed_keys(site: str, channel: bytes, mask: bytes) -> bytes:
    keys = Keys(site, channel, mask, seed_commitment(TERMS, site, bytes(32)))
    return Keys(site, channel, mask, keys.commitment, signer(site)(keys.signed(TERMS))).encode(TERMS)


def deal_from_another_secret(monkeypatch: pytest.MonkeyPatch, party: Party, liar: str, which: int) -> None:
    """Stage 2, in which the liar's shares of its seed (0) or of its mask key (1) are those of something else."""
    party.until_keys()
    cohort = party.collector.cohort()
    for site in party.names:
        calls = iter(range(2))
        if site == liar:
            monkeypatch.setattr(
                member_module,
                "split",
                lambda secret, t, points, calls=calls: split(bytes(32) if next(calls) == which else secret, t, points),
            )
        party.collector.shares(site, party.share(site, cohort))
        monkeypatch.undo()


@pytest.mark.parametrize("liar", ["a", "e"])
@pytest.mark.parametrize("survives", [True, False])
def test_a_dealer_of_wrong_shares_is_named(monkeypatch: pytest.MonkeyPatch, liar: str, survives: bool) -> None:
    party, vectors = Party(FIVE), vectors_of(FIVE)
    deal_from_another_secret(monkeypatch, party, liar, which=0 if survives else 1)
    for site in FIVE:
        if survives or site != liar:
            party.collector.add(site, *party.mask(site, vectors[site], party.collector.dealt_to(site)))
    survivors = party.collector.survivors()
    for site in survivors if not survives else []:
        party.collector.signature(site, party.agree(site, survivors))
    for site in survivors:
        party.collector.unmask(site, party.unmask(site, survivors, party.collector.signatures()))
    dropped(liar, Reason.WRONG_DEAL, party.collector.result)


@pytest.mark.parametrize("survives", [True, False])
def test_wrong_shares_of_what_is_not_asked_for_do_no_harm(monkeypatch: pytest.MonkeyPatch, survives: bool) -> None:
    party, vectors = Party(FIVE), vectors_of(FIVE)
    deal_from_another_secret(monkeypatch, party, "c", which=1 if survives else 0)
    survivors = FIVE if survives else list("abde")
    for site in survivors:
        party.collector.add(site, *party.mask(site, vectors[site], party.collector.dealt_to(site)))
    assert party.collector.survivors() == survivors
    for site in survivors if not survives else []:
        party.collector.signature(site, party.agree(site, survivors))
    for site in survivors:
        party.collector.unmask(site, party.unmask(site, survivors, party.collector.signatures()))
    assert np.array_equal(party.collector.result(), total(vectors[site] for site in survivors))


def test_shares_other_than_those_committed_to_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Else their honest receiver would be blamed when it reveals them.
    party = Party(FIVE)
    party.until_keys()
    cohort = party.collector.cohort()
    for site in "acde":
        party.collector.shares(site, party.share(site, cohort))
    monkeypatch.setattr(Shares, "commitments", lambda *_: (bytes(32), bytes(32)))
    party.collector.shares("b", party.share("b", cohort))
    monkeypatch.undo()
    with pytest.raises(SecureSumError) as caught:
        party.mask("a", vectors_of("a")["a"], party.collector.dealt_to("a"))
    assert (caught.value.reason, caught.value.site) == (Reason.NOT_OPENED, "b")


def altered(answer: bytes, party: Party, site: str, position: int) -> bytes:
    """The same answer with another share for the dealer at this position."""
    start = len(answer) - SHARE_BYTES * (len(party.names) - position)
    return answer[:start] + bytes([answer[start] ^ 1]) + answer[start + 1 :]


def test_who_reveals_a_wrong_share_is_named_and_the_others_suffice() -> None:
    party, vectors = Party(FIVE), vectors_of(FIVE)
    party.until_masked(vectors)
    survivors = party.collector.survivors()
    answers = {site: party.unmask(site, survivors, {}) for site in FIVE}
    for position in (1, 4):
        wrong = altered(answers["a"], party, "a", position)
        dropped("a", Reason.WRONG_SHARE, party.collector.unmask, "a", wrong)
    # The same of a site's share of its own seed.
    dropped("b", Reason.WRONG_SHARE, party.collector.unmask, "b", altered(answers["b"], party, "b", 1))
    for site in "cde":
        party.collector.unmask(site, answers[site])
    assert np.array_equal(party.collector.result(), total(vectors.values()))


def test_an_answer_for_another_list_is_not_taken() -> None:
    party = Party(FIVE)
    party.until_masked(vectors_of(FIVE))
    seeds = [party.member("a")._shares[dealer].seed for dealer in FIVE]
    other = party.member("a")._outcome(["a", "b", "c"])
    party.collector.survivors()
    dropped("a", Reason.OTHER_LIST, party.collector.unmask, "a", encode_answer(TERMS, "a", other, seeds))


def test_the_share_of_the_other_kind_is_not_taken() -> None:
    party, vectors = Party(FIVE), vectors_of(FIVE)
    party.until_masked(vectors, {"e": "mask"})
    survivors = party.collector.survivors()
    for site in survivors:
        party.collector.signature(site, party.agree(site, survivors))
    member = party.member("a")
    keys_instead = [member._shares[dealer].key for dealer in FIVE]
    outcome = member._outcome(survivors)
    dropped("a", Reason.WRONG_SHARE, party.collector.unmask, "a", encode_answer(TERMS, "a", outcome, keys_instead))


def test_too_few_answers_and_asking_too_early() -> None:
    party, vectors = Party(FIVE), vectors_of(FIVE)
    for ask in (lambda: party.collector.dealt_to("a"), party.collector.survivors, party.collector.result):
        with pytest.raises(SecureSumError) as caught:
            ask()
        assert caught.value.reason is Reason.ORDER
    with pytest.raises(SecureSumError) as caught:
        party.collector.cohort()
    assert caught.value.reason is Reason.TOO_FEW
    party.until_masked(vectors)
    survivors = party.collector.survivors()
    for site in "ab":
        party.collector.unmask(site, party.unmask(site, survivors, {}))
    with pytest.raises(SecureSumError) as caught:
        party.collector.result()
    assert (caught.value.reason, caught.value.site) == (Reason.TOO_FEW, None)
    party.collector.unmask("c", party.unmask("c", survivors, {}))
    assert np.array_equal(party.collector.result(), total(vectors.values()))
    assert np.array_equal(party.collector.result(), total(vectors.values()))  # asked again, the same


def test_late_double_and_foreign_messages_are_dropped_and_change_nothing() -> None:
    party, vectors = Party(FIVE), vectors_of(FIVE)
    collector = party.collector
    keys = {site: party.keys(site) for site in FIVE}
    for site in "abcd":
        collector.keys(site, keys[site])
    dropped("a", Reason.ORDER, collector.keys, "a", keys["a"])
    dropped("z", Reason.UNKNOWN_SITE, collector.keys, "z", keys["e"])
    dropped("e", Reason.OTHER_SITE, collector.keys, "e", keys["a"])
    cohort = collector.cohort()
    dropped("e", Reason.ORDER, collector.keys, "e", keys["e"])
    sealed = {site: party.share(site, cohort) for site in "abcd"}
    dropped("e", Reason.COHORT, collector.shares, "e", sealed["a"])
    dropped("a", Reason.COHORT, collector.shares, "a", {"b": sealed["a"]["b"]})
    dropped("a", Reason.COHORT, collector.shares, "a", {site: sealed["a"][site] for site in "bcd"})
    dropped("a", Reason.MALFORMED, collector.shares, "a", sealed["a"] | {"a": sealed["a"]["b"]})
    dropped("a", Reason.OTHER_SITE, collector.shares, "a", sealed["a"] | {"a": sealed["b"]["b"]})
    dropped("a", Reason.OTHER_SITE, collector.shares, "a", sealed["a"] | {"b": sealed["b"]["a"]})
    dropped("a", Reason.OTHER_SITE, collector.shares, "a", sealed["a"] | {"b": sealed["a"]["c"]})
    for site in "abc":
        collector.shares(site, sealed[site])
    dropped("a", Reason.ORDER, collector.shares, "a", sealed["a"])
    masked = {site: party.mask(site, vectors[site], collector.dealt_to(site)) for site in "abc"}
    dropped("d", Reason.ORDER, collector.shares, "d", sealed["d"])
    dropped("d", Reason.COHORT, collector.dealt_to, "d")
    dropped("d", Reason.COHORT, collector.add, "d", *masked["a"])
    for site in "abc":
        collector.add(site, *masked[site])
        dropped(site, Reason.ORDER, collector.add, site, *masked[site])
    survivors = collector.survivors()
    dropped("d", Reason.ORDER, collector.add, "d", *masked["a"])
    dropped("d", Reason.COHORT, collector.signature, "d", b"")
    dropped("d", Reason.COHORT, collector.unmask, "d", b"")
    assert collector.signatures() == {}
    for site in survivors:
        answer = party.unmask(site, survivors, {})
        collector.unmask(site, answer)
        dropped(site, Reason.ORDER, collector.unmask, site, answer)
    assert np.array_equal(collector.result(), total(vectors[site] for site in "abc"))
    dropped("a", Reason.ORDER, collector.unmask, "a", answer)


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros(49, dtype=np.uint64),
        np.zeros(50, dtype=np.int64),
        np.zeros(50, dtype=np.float64),
        np.zeros(50, dtype=">u8"),
        np.zeros((50, 1), dtype=np.uint64),
        np.zeros(0, dtype=np.uint64),
        [0] * 50,
    ],
)
def test_a_vector_of_another_kind_or_length_is_dropped(vector: object) -> None:
    party, vectors = Party(FIVE), vectors_of(FIVE)
    party.until_masked(vectors, {"e": "mask"})
    dropped("e", Reason.VECTOR, party.collector.add, "e", vector, b"")
    if len(vector) != 49:  # type: ignore[arg-type]
        with pytest.raises(SecureSumError) as caught:
            party.member("e").mask(vector, party.collector.dealt_to("e"))  # type: ignore[arg-type]
        assert caught.value.reason is Reason.VECTOR


def test_the_collector_writes_into_no_vector_of_the_caller() -> None:
    party, vectors = Party(FIVE), vectors_of(FIVE)
    party.until_shares()
    for site in FIVE:
        masked, signature = party.mask(site, vectors[site], party.collector.dealt_to(site))
        masked.flags.writeable = False  # as one that came over the wire
        party.collector.add(site, masked, signature)


def test_the_first_vector_may_be_dropped_too() -> None:
    party = Party(FIVE)
    party.until_shares()
    party.collector.dealt_to("a")
    dropped("a", Reason.VECTOR, party.collector.add, "a", np.zeros(0, dtype=np.uint64), b"")


def test_useless_and_copied_keys_are_dropped_by_the_server_and_refused_by_sites() -> None:
    party = Party(FIVE)
    for site in "abcd":
        party.collector.keys(site, party.keys(site))
    cohort = party.collector.cohort()
    b, good = Keys.decode(cohort["b"], TERMS, "b"), [public_of(bytes([k]) * 32) for k in range(2)]
    wrong = [
        (Reason.BAD_KEY, signed_keys("e", bytes(32), good[1]), "e"),
        (Reason.BAD_KEY, signed_keys("e", good[0], bytes(32)), "e"),
        (Reason.SAME_KEYS, signed_keys("e", b.channel, good[1]), None),
        (Reason.SAME_KEYS, signed_keys("e", good[0], b.mask), None),
        (Reason.SAME_KEYS, signed_keys("e", good[0], b.channel), None),
        (Reason.SAME_KEYS, signed_keys("e", good[0], good[0]), None),
    ]
    for reason, message, blamed in wrong:
        fresh = Collector(roster_of(FIVE), SESSION, CONTEXT, 3)
        for site in "abcd":
            fresh.keys(site, cohort[site])
        dropped("e", reason, fresh.keys, "e", message)
        with pytest.raises(SecureSumError) as caught:
            party.member("a").share(cohort | {"e": message})
        assert (caught.value.reason, caught.value.site) == (reason, blamed)


@cache
def sample() -> tuple[Party, dict[str, bytes]]:
    """A round in which e has not yet masked, and a message of b of each kind."""
    party = Party(FIVE)
    party.until_masked(vectors_of(FIVE), {"e": "mask"})
    return party, {
        "keys": party.collector.cohort()["b"],
        "shares": party.collector.dealt_to("e")["b"],
        "signature": party.agree("b", party.collector.survivors()),
        "answer": party.unmask("b", party.collector.survivors(), {s: party.agree(s, list("abcd")) for s in "acd"}),
    }


def receive(kind: str, data: bytes) -> None:
    """Hand this message of b to whom it may concern."""
    party, _ = sample()
    if kind == "keys":
        Collector(roster_of(FIVE), SESSION, CONTEXT, 3).keys("b", data)
    elif kind == "shares":
        party.member("e").mask(vectors_of("e")["e"], party.collector.dealt_to("e") | {"b": data})
    elif kind == "signature":
        Collector.from_bytes(party.collector.to_bytes()).signature("b", data)
    else:
        Collector.from_bytes(party.collector.to_bytes()).unmask("b", data)


@pytest.mark.parametrize("kind", ["keys", "shares", "signature", "answer"])
def test_the_messages_that_are_altered_below_are_right(kind: str) -> None:
    receive(kind, sample()[1][kind])


@examples(80)
@given(data=st.data())
def test_altered_truncated_or_lengthened_messages_fail_in_a_known_way(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["keys", "shares", "signature", "answer"]))
    message = sample()[1][kind]
    own_share = SHARE_BYTES * 4 if kind == "answer" else 0  # b's share of its own seed is not checked when it comes
    position = data.draw(st.integers(0, len(message) - 1 - own_share))
    altered = data.draw(
        st.sampled_from([message[:position], message[:position] + b"\0" + message[position:]])
        | st.integers(0, 7).map(
            lambda bit: message[:position] + bytes([message[position] ^ (1 << bit)]) + message[position + 1 :]
        )
    )
    with pytest.raises(SecureSumError) as caught:
        receive(kind, altered)
    assert caught.value.site == "b"


@pytest.mark.parametrize("garbage", [b"", b"x", bytes(1000), b"\xff" * 8, bytes(1 << 20), None, "text", 3.0])
def test_garbage_is_malformed(garbage: object) -> None:
    party = Party(FIVE)
    dropped("a", Reason.MALFORMED, party.collector.keys, "a", garbage)
    party.until_masked(vectors_of(FIVE), {"e": "mask"})
    survivors = party.collector.survivors()
    dropped("a", Reason.MALFORMED, party.collector.signature, "a", garbage)
    dropped("a", Reason.MALFORMED, party.collector.unmask, "a", garbage)
    with pytest.raises(SecureSumError) as caught:
        party.member("a").unmask(survivors, {"b": garbage})  # type: ignore[dict-item]
    assert (caught.value.reason, caught.value.site) == (Reason.MALFORMED, "b")


def test_a_message_beyond_the_longest_is_not_even_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "unpack", lambda _: pytest.fail("unpacked"))
    dropped("a", Reason.MALFORMED, Party(FIVE).collector.keys, "a", bytes(messages.LONGEST_MESSAGE + 1))
