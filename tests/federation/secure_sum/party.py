"""Sites and a server in one process, for tests: an honest round with sites that go, and the pieces to cheat with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from numpy.typing import NDArray

from fedhip.federation.secure_sum import Collector, Member
from fedhip.federation.secure_sum.member import Sign

Vector = NDArray[np.uint64]
SESSION, CONTEXT = bytes(range(32)), b"the agreement"

#: Before what a site goes.
STEPS = ("keys", "share", "mask", "agree", "unmask")


@cache
def site_key(name: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def signer(name: str) -> Sign:
    return lambda data: site_key(name).sign(data, ec.ECDSA(SHA384()))


@cache
def openssh(name: str) -> bytes:
    return site_key(name).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def roster_of(names: Iterable[str]) -> dict[str, bytes]:
    return {name: openssh(name) for name in names}


def vectors_of(names: Iterable[str], length: int = 50, seed: int = 0) -> dict[str, Vector]:
    generator = np.random.default_rng(seed)
    return {name: generator.integers(0, 2**64, length, dtype=np.uint64) for name in names}


def total(vectors: Iterable[Vector]) -> Vector:
    """The sum mod 2^64 in Python's integers, as an oracle."""
    return np.array([sum(map(int, column)) % 2**64 for column in zip(*vectors, strict=True)], dtype=np.uint64)


class Party:
    """Members and a collector; every step of a member is done by one restored from bytes, as at a real site."""

    def __init__(
        self,
        names: str | Iterable[str] = "abcde",
        threshold: int = 3,
        minimum: int = 2,
        session: bytes = SESSION,
        context: bytes = CONTEXT,
    ) -> None:
        self.names = list(names)
        roster = roster_of(self.names)
        self.collector = Collector(roster, session, context, threshold)
        self.states = {
            name: Member.begin(
                site=name,
                roster=roster,
                sign=signer(name),
                session=session,
                context=context,
                minimum=minimum,
                threshold=threshold,
            ).to_bytes()
            for name in self.names
        }

    def member(self, name: str) -> Member:
        return Member.from_bytes(self.states[name], signer(name))

    def keep(self, name: str, member: Member) -> None:
        self.states[name] = member.to_bytes()

    def restart_server(self) -> None:
        self.collector = Collector.from_bytes(self.collector.to_bytes())

    def keys(self, name: str) -> bytes:
        member = self.member(name)
        message = member.keys()
        self.keep(name, member)
        return message

    def share(self, name: str, cohort: Mapping[str, bytes]) -> dict[str, bytes]:
        member = self.member(name)
        sealed = member.share(cohort)
        self.keep(name, member)
        return sealed

    def mask(self, name: str, vector: Vector, sealed: Mapping[str, bytes]) -> tuple[Vector, bytes]:
        member = self.member(name)
        masked = member.mask(vector, sealed)
        self.keep(name, member)
        return masked

    def agree(self, name: str, survivors: list[str]) -> bytes:
        member = self.member(name)
        signature = member.agree(survivors)
        self.keep(name, member)
        return signature

    def unmask(self, name: str, survivors: list[str], signatures: Mapping[str, bytes]) -> bytes:
        member = self.member(name)
        answer = member.unmask(survivors, signatures)
        self.keep(name, member)
        return answer

    def until_keys(self, gone: Mapping[str, str] | None = None) -> list[str]:
        """Stage 1; who is left."""
        left = self._left(self.names, gone, "keys")
        for name in left:
            self.collector.keys(name, self.keys(name))
        return left

    def until_shares(self, gone: Mapping[str, str] | None = None) -> list[str]:
        """Stages 1 and 2."""
        left = self._left(self.until_keys(gone), gone, "share")
        cohort = self.collector.cohort()
        for name in left:
            self.collector.shares(name, self.share(name, cohort))
        return left

    def until_masked(self, vectors: Mapping[str, Vector], gone: Mapping[str, str] | None = None) -> list[str]:
        """Stages 1 to 3."""
        left = self._left(self.until_shares(gone), gone, "mask")
        for name in left:
            self.collector.add(name, *self.mask(name, vectors[name], self.collector.dealt_to(name)))
        return left

    def round(self, vectors: Mapping[str, Vector], gone: Mapping[str, str] | None = None) -> Vector:
        """All stages; the server starts again from its checkpoint after each."""
        left = self._left(self.until_masked(vectors, gone), gone, "agree")
        self.restart_server()
        survivors = self.collector.survivors()
        if survivors != sorted(self.collector.dealt_to(survivors[0]).keys() | {survivors[0]}):
            for name in left:
                self.collector.signature(name, self.agree(name, survivors))
        self.restart_server()
        signatures = self.collector.signatures()
        for name in self._left(left, gone, "unmask"):
            self.collector.unmask(name, self.unmask(name, survivors, signatures))
        self.restart_server()
        return self.collector.result()

    @staticmethod
    def _left(names: list[str], gone: Mapping[str, str] | None, step: str) -> list[str]:
        return [name for name in names if (gone or {}).get(name) != step]
