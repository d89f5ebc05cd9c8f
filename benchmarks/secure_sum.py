"""What the secure sum costs: processor seconds of a client and of the server in each stage, bytes, memory of masking.

    python benchmarks/secure_sum.py                                   K = 50, m = 768, d = 100, 5 sites go: about 20 s
    python benchmarks/secure_sum.py --clients 8 --width 64 --gone 1   to see that it runs
    python benchmarks/secure_sum.py --clients 4 --width 5000 --gone 1 vectors of 100 MB

The sites that go have dealt their shares and never send their vector: the dearest time to go. Each step of a client is
done by a member restored from bytes, and the time to restore and to keep it is in the figure. The sum is compared with
the plain one.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from numpy.typing import NDArray

from fedhip.federation.secure_sum import Collector, Member
from fedhip.federation.secure_sum.masks import apply_masks
from fedhip.federation.secure_sum.member import Sign

Result = TypeVar("Result")
P = ParamSpec("P")


class Clock:
    """Processor seconds by stage, one entry for each time it was done."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def time(self, stage: str, action: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Do it, and note how long it took."""
        start = time.process_time()
        result = action(*args, **kwargs)
        self.seconds[stage].append(time.process_time() - start)
        return result


class Site:
    """A client whose member lives in bytes between the steps."""

    def __init__(self, name: str, key: ec.EllipticCurvePrivateKey) -> None:
        self.name, self.key, self.clock, self.state = name, key, Clock(), b""
        self.sent = self.received = 0

    @property
    def sign(self) -> Sign:
        """The site's signature."""
        return lambda data: self.key.sign(data, ec.ECDSA(SHA384()))

    def begin(self, roster: dict[str, bytes], session: bytes, threshold: int) -> bytes:
        """Stage 1."""

        def step() -> bytes:
            member = Member.begin(
                site=self.name,
                roster=roster,
                sign=self.sign,
                session=session,
                context=b"benchmark",
                minimum=3,
                threshold=threshold,
            )
            message = member.keys()
            self.state = member.to_bytes()
            return message

        return self.clock.time("keys", step)

    def do(
        self, stage: str, action: Callable[Concatenate[Member, P], Result], *args: P.args, **kwargs: P.kwargs
    ) -> Result:
        """A later stage."""

        def step() -> Result:
            member = Member.from_bytes(self.state, self.sign)
            result = action(member, *args, **kwargs)
            self.state = member.to_bytes()
            return result

        return self.clock.time(stage, step)


def main() -> None:
    """Run one round and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--width", type=int, default=768, help="m, the features' width")
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--gone", type=int, default=5, help="sites that never send their vector")
    arguments = parser.parse_args()
    K, m, d, gone = arguments.clients, arguments.width, arguments.classes, arguments.gone
    length, threshold = m * (m + 1) // 2 + m * d + d, 2 * K // 3 + 1
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"K = {K}, m = {m}, d = {d}: vectors of {length:,} words ({length / 2**17:.1f} MiB), threshold {threshold}")
    begin = time.process_time()
    round_of(K, length, threshold, gone)
    print(f"processor time of the round, all in this process: {time.process_time() - begin:.1f} s")
    memory(length, K)


def round_of(K: int, length: int, threshold: int, gone: int) -> None:
    """One round; the plain sum is made on the way, so that not all vectors are in memory at once."""
    sites = {f"site-{k:03d}": Site(f"site-{k:03d}", ec.generate_private_key(ec.SECP384R1())) for k in range(K)}
    roster = {
        name: site.key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) for name, site in sites.items()
    }
    server, session = Clock(), os.urandom(32)
    collector = Collector(roster, session, b"benchmark", threshold)
    for name, site in sites.items():
        message = site.begin(roster, session, threshold)
        site.sent += len(message)
        server.time("keys", collector.keys, name, message)
    cohort = collector.cohort()
    for name, site in sites.items():
        sealed = site.do("share", Member.share, cohort)
        site.sent += sum(map(len, sealed.values()))
        site.received += sum(map(len, cohort.values()))
        server.time("share", collector.shares, name, sealed)
    plain = np.zeros(length, dtype=np.uint64)
    generator = np.random.default_rng(0)
    for name, site in list(sites.items())[: K - gone]:
        vector = generator.integers(0, 2**64, length, dtype=np.uint64)
        plain += vector
        dealt = collector.dealt_to(name)
        masked, signature = site.do("mask", Member.mask, vector, dealt)
        site.sent += masked.nbytes + len(signature)
        site.received += sum(map(len, dealt.values()))
        server.time("mask", collector.add, name, masked, signature)
    survivors = collector.survivors()
    for name in survivors if gone else []:
        signature = sites[name].do("agree", Member.agree, survivors)
        sites[name].sent += len(signature)
        server.time("agree", collector.signature, name, signature)
    signatures = collector.signatures()
    for name in survivors:
        answer = sites[name].do("unmask", Member.unmask, survivors, signatures)
        sites[name].sent += len(answer)
        sites[name].received += sum(map(len, signatures.values()))
        server.time("unmask", collector.unmask, name, answer)
    state = server.time("checkpoint", collector.to_bytes)
    server.time("restore", Collector.from_bytes, state)
    result = server.time("result", collector.result)
    assert np.array_equal(result, plain)
    report([sites[name] for name in survivors], server, gone, len(state))


def report(sites: list[Site], server: Clock, gone: int, state_bytes: int) -> None:
    """The figures of the sites that stayed, and of the server."""
    totals = [sum(times[0] for times in site.clock.seconds.values()) for site in sites]
    print(f"one client, {len(sites)} measured, {gone} gone")
    for stage in sites[0].clock.seconds:
        times = [site.clock.seconds[stage][0] for site in sites]
        print(f"  {stage:10s} {1e3 * median(times):9.1f} ms, at most {1e3 * max(times):9.1f}")
    print(f"  {'all':10s} {1e3 * median(totals):9.1f} ms, at most {1e3 * max(totals):9.1f}")
    print(
        f"  sent {sites[0].sent / 1e6:.3f} MB, received {sites[0].received / 1e6:.3f} MB beside the vector's way back"
    )
    print("server, the whole round")
    for stage, times in server.seconds.items():
        print(f"  {stage:10s} {1e3 * sum(times):9.1f} ms")
    print(f"  checkpoint of {state_bytes / 1e6:.1f} MB; the sum is the plain sum, bit for bit")


def memory(length: int, masks: int) -> None:
    """What masking takes beside the vector, and its speed."""
    vector: NDArray[np.uint64] = np.zeros(length, dtype=np.uint64)
    keys = [os.urandom(32) for _ in range(masks)]
    tracemalloc.start()
    apply_masks(vector, keys, [])
    extra = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    start = time.perf_counter()
    apply_masks(vector, keys, [])
    speed = masks * vector.nbytes / (time.perf_counter() - start)
    print(
        f"masking: {speed / 1e9:.2f} GB/s, {extra / 2**20:.2f} MiB beside a vector of {vector.nbytes / 2**20:.1f} MiB"
    )


if __name__ == "__main__":
    main()
