"""Encodings, derivations and mask streams against independent implementations."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

import numpy as np
import pytest
from Crypto.Cipher import AES
from hypothesis import given
from hypothesis import strategies as st

from fedhip.federation.secure_sum import encoding, masks, messages
from fedhip.federation.secure_sum.errors import Reason, SecureSumError
from fedhip.federation.secure_sum.primitives import (
    PROTOCOL,
    derive,
    digest,
    exchange,
    public_of,
    require_usable,
    seal,
    unseal,
)

KEY = bytes(range(32))


def framed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_unpack_inverts_pack(parts: list[bytes]) -> None:
    assert encoding.unpack(encoding.pack(parts)) == parts


@given(st.binary(max_size=60))
def test_what_unpacks_packs_to_the_same(data: bytes) -> None:
    try:
        parts = encoding.unpack(data)
    except SecureSumError:
        return
    assert encoding.pack(parts) == data


def test_a_length_beyond_the_data_is_refused_before_anything_is_made() -> None:
    with pytest.raises(SecureSumError):
        encoding.unpack((2**63).to_bytes(8, "little") + b"x")


@pytest.mark.parametrize("names", [[b"b", b"a"], [b"a", b"a"], [b"\xff", b"a"]])
def test_mappings_have_one_order(names: list[bytes]) -> None:
    with pytest.raises(SecureSumError):
        encoding.unpack_mapping(framed(*(part for name in names for part in (name, b"x"))))
    with pytest.raises(SecureSumError):
        encoding.unpack_mapping(framed(b"a"))


def test_digest_and_derivation_name_protocol_and_purpose() -> None:
    info = framed(PROTOCOL, b"purpose", b"x", b"")
    assert digest(b"purpose", b"x", b"") == hashlib.sha256(info).digest()
    extracted = hmac.digest(bytes(32), KEY, "sha256")  # RFC 5869
    assert derive(KEY, b"purpose", b"x", b"") == hmac.digest(extracted, info + b"\1", "sha256")


def test_every_purpose_gives_another_key() -> None:
    view = bytes(32)
    keys = [
        masks.self_mask_key(KEY, view, "a"),
        masks.self_mask_key(KEY, view, "b"),
        masks.self_mask_key(KEY, b"\1" * 32, "a"),
        masks.pair_mask_key(KEY, view, "a", "b"),
        masks.pair_mask_key(KEY, view, "a", "c"),
        masks.pair_mask_key(KEY, b"\1" * 32, "a", "b"),
        messages.seal_key(KEY, view, "a", "b"),
        messages.seal_key(KEY, view, "b", "a"),
        messages.seal_key(KEY, b"\1" * 32, "a", "b"),
    ]
    assert len(set(keys)) == len(keys)
    assert masks.pair_mask_key(KEY, view, "b", "a") == masks.pair_mask_key(KEY, view, "a", "b")


@pytest.mark.parametrize("length", [1, 5, masks.BLOCK + 7])
def test_masks_are_the_keystream_of_another_library(length: int) -> None:
    def stream(key: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        cipher = AES.new(key, AES.MODE_CTR, nonce=b"", initial_value=0)
        return np.frombuffer(cipher.encrypt(bytes(8 * length)), dtype="<u8")

    first, second, third = (bytes([k]) * 32 for k in range(3))
    vector = np.random.default_rng(0).integers(0, 2**64, length, dtype=np.uint64)
    masked = vector.copy()
    masks.apply_masks(masked, added=[first, second], removed=[third])
    assert np.array_equal(masked, vector + stream(first) + stream(second) - stream(third))
    masks.apply_masks(masked, added=[third], removed=[first, second])
    assert np.array_equal(masked, vector)


def test_x25519_of_rfc_7748() -> None:
    private = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    public = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    assert exchange(private, public).hex() == "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"


@pytest.mark.parametrize(
    "change", [lambda s: s[:-1], lambda s: s[:-1] + bytes([s[-1] ^ 1]), lambda s: bytes([s[0] ^ 1]) + s[1:]]
)
def test_what_is_sealed_opens_only_whole_and_with_its_header(change: Callable[[bytes], bytes]) -> None:
    sealed = seal(KEY, b"plain", b"header")
    assert unseal(KEY, sealed, b"header") == b"plain"
    for key, data, header in [
        (KEY, change(sealed), b"header"),
        (KEY, sealed, b"other"),
        (bytes(32), sealed, b"header"),
    ]:
        with pytest.raises(SecureSumError) as caught:
            unseal(key, data, header)
        assert caught.value.reason is Reason.NOT_OPENED


def test_keys_of_low_order_are_refused() -> None:
    for low in (bytes(32), b"\1" + bytes(31)):
        with pytest.raises(SecureSumError) as caught:
            require_usable(low)
        assert caught.value.reason is Reason.BAD_KEY
    assert exchange(KEY, public_of(bytes(32))) == exchange(bytes(32), public_of(KEY))
