"""The primitives, all from `cryptography`: X25519, HKDF-SHA256, AES-256-GCM, SHA-256, ECDSA P-384.

Every hash, derivation and signature names its purpose first, so that none can stand for another.
"""

from __future__ import annotations

from secrets import token_bytes

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, Hash
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedhip.federation.secure_sum.encoding import pack, pieces
from fedhip.federation.secure_sum.errors import Reason, SecureSumError, require

PROTOCOL = b"fedhip secure sum, version 2"
KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
LONGEST_SIGNATURE = 104  # DER of two numbers below 2^384

_P384 = ec.SECP384R1()


def statement(purpose: bytes, *parts: bytes) -> bytes:
    """The parts, marked with this protocol and what they are for."""
    return pack((PROTOCOL, purpose, *parts))


def digest(purpose: bytes, *parts: bytes | memoryview) -> bytes:
    """SHA-256 of the statement."""
    hasher = Hash(SHA256())
    for piece in pieces((PROTOCOL, purpose, *parts)):
        hasher.update(piece)
    return hasher.finalize()


def derive(secret: bytes, purpose: bytes, *parts: bytes) -> bytes:
    """HKDF-SHA256 of a secret, with the statement as its info."""
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=statement(purpose, *parts)).derive(secret)


def public_of(private: bytes) -> bytes:
    """The X25519 public key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def exchange(private: bytes, public: bytes) -> bytes:
    """What two X25519 keys have in common; refused where the other key has low order."""
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise SecureSumError(None, Reason.BAD_KEY) from None


def require_usable(public: bytes) -> None:
    """Require an X25519 public key that is not of low order."""
    exchange(token_bytes(KEY_BYTES), public)


def seal(key: bytes, plain: bytes, header: bytes) -> bytes:
    """Nonce and AES-256-GCM ciphertext; the header is authenticated with it."""
    nonce = token_bytes(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, header)


def unseal(key: bytes, sealed: bytes, header: bytes) -> bytes:
    """What was sealed under this key with this header."""
    try:
        return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], header)
    except InvalidTag:
        raise SecureSumError(None, Reason.NOT_OPENED) from None


def verify(point: bytes, signature: bytes, message: bytes) -> None:
    """Require an ECDSA signature (P-384, SHA-384, DER) of the message."""
    require(0 < len(signature) <= LONGEST_SIGNATURE, Reason.SIGNATURE)
    try:
        ec.EllipticCurvePublicKey.from_encoded_point(_P384, point).verify(signature, message, ec.ECDSA(SHA384()))
    except InvalidSignature:
        raise SecureSumError(None, Reason.SIGNATURE) from None
