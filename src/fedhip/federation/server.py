"""The server's side of the round.

    hello → [encoder] → keys → share → mask → [agree] → unmask → personalize → result

A site that errs, is late or sends garbage is left out by name, and the round goes on while the quorum holds. Each
answer is folded into one running sum and let go, so that memory does not grow with the number of sites. The server
learns the sum and, of those who tell, an accuracy.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedhip.core.errors import FedHiPError, GridOverflowError, StatisticsError
from fedhip.federation.agreement import FILE as AGREEMENT_FILE
from fedhip.federation.agreement import Agreement
from fedhip.federation.checkpoint import Checkpoint, Progress, Stage
from fedhip.federation.codes import ServerCode, SiteCode, meaning
from fedhip.federation.credentials import verify
from fedhip.federation.diary import Diary
from fedhip.federation.encoder import EncoderFile, Presence
from fedhip.federation.errors import MessageError, QuorumError, RoundError
from fedhip.federation.exchange import Exchange, Question, Reply
from fedhip.federation.result import accuracies_in, write_result
from fedhip.federation.roster import FILE as ROSTER_FILE
from fedhip.federation.roster import Roster
from fedhip.federation.secure_sum import Collector, Reason, SecureSumError, SiteDroppedError
from fedhip.federation.vector import Layout, Vector, from_vector, require_possible, require_room
from fedhip.federation.wire import (
    SESSION_BYTES,
    Arrays,
    Body,
    Envelope,
    Letter,
    Step,
    by_site,
    context_of,
    hello_statement,
)

if TYPE_CHECKING:
    from fedhip.core.fixedpoint import GridStatistics

#: Beside federation.toml, for sites that lack it.
ENCODER_FILE = "encoder.safetensors"

Fold = Callable[[str, Letter], object]


@dataclass
class Round:
    """One round of one federation, from its folder."""

    folder: Path
    exchange: Exchange
    agreement: Agreement
    roster: Roster
    seconds: dict[str, float] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, make_exchange: Callable[[float], Exchange]) -> Round:
        """The round of the federation in this folder; `make_exchange` is given the deadline of a step."""
        agreement, roster = Agreement.read(folder / AGREEMENT_FILE), Roster.read(folder / ROSTER_FILE)
        agreement.require_roster(roster)
        return cls(folder, make_exchange(agreement.deadline), agreement, roster)

    def __post_init__(self) -> None:
        self.state = self.folder / "state"
        self.out = self.state / "result"
        self.diary = Diary(self.state / "progress.jsonl")
        self.checkpoint = Checkpoint(self.state / "checkpoint")
        self.layout = Layout(self.agreement.width, len(self.agreement.classes))
        self.digests = self.agreement.digest(), self.roster.digest()
        self.envelope = Envelope(bytes(SESSION_BYTES), *self.digests, Step.HELLO)

    def run(self) -> Path:
        """All steps, or those that are left of a round that was broken off; the result's folder."""
        try:
            return self._run()
        except FedHiPError as error:
            self.diary.write("failed", str(error))
            raise

    def _run(self) -> Path:
        progress = self.checkpoint.read(*self.digests)
        if self.out.exists():
            if progress is not None:  # killed with its work done
                self.checkpoint.clear()
                return self.out
            raise RoundError(
                f"this round is finished, and {self.out} holds its result; another sum of the same sites may reveal "
                "one of them: make a new federation for it"
            )
        if progress is None:
            progress = self._sum_of_new_session()
        else:
            self._go_on(progress)
        if progress.stage is Stage.MASKED:
            self._unmask(progress)
        self._personalize(progress)
        self.checkpoint.clear()
        self.diary.write("finished", f"the sum of {len(progress.sites)} sites and the global model are in {self.out}")
        return self.out

    # Until every vector is in.

    def _sum_of_new_session(self) -> Progress:
        session = secrets.token_bytes(SESSION_BYTES)
        self.envelope = replace(self.envelope, session=session)
        for warning in self.agreement.warnings:
            self.diary.write("hello", warning)
        self._hello()
        progress = Progress(*self.digests, session.hex(), 1, Stage.MASKED, [])
        if self.agreement.secure_sum:
            collector = self._masked_sum(session)
            progress.sites = collector.survivors()
            data: bytes | memoryview = collector.to_bytes()
        else:
            total, progress.sites = self._plain_sum()
            progress.stage, data = Stage.SUMMED, total.astype("<u8", copy=False).data
        progress.dropped = self.dropped
        self.checkpoint.write(progress, data)
        return progress

    def _hello(self) -> None:
        """Who is here: known by the signature on its answer, and not by what the engine calls it."""
        known = self._registered()
        with self._timed("waiting for sites"):
            here = self.exchange.wait_for(known)
        for site in self.roster.names:
            if not any(known[node] == site for node in here):
                self._drop(Step.HELLO, site, ServerCode.NEVER_CAME)
        missing_encoder = []
        candidates = [(known[node], node) for node in sorted(here)]
        for reply in self._ask(Step.HELLO, candidates, _always({}, {})):
            if reply.letter is None:
                if reply.site not in self.nodes:
                    self._drop(Step.HELLO, reply.site, reply.code)
                continue
            try:
                name, signature = reply.letter.text("site"), reply.letter.data("signature")
                encoder = Presence(reply.letter.text("encoder"))
                statement = hello_statement(reply.letter.envelope, reply.site, reply.node)
                genuine = name == reply.site and verify(self.roster.keys[reply.site], signature, statement)
            except (MessageError, ValueError):
                self._drop(Step.HELLO, reply.site, ServerCode.GARBAGE)
                continue
            if not genuine:
                self._drop(Step.HELLO, reply.site, ServerCode.SIGNATURE)
                continue
            if reply.site in self.nodes:
                self.diary.write(Step.HELLO, f"site {reply.site!r} {meaning(ServerCode.TWICE)}", reply.site)
                continue
            self.nodes[reply.site] = reply.node
            self.dropped.pop(reply.site, None)
            self.diary.write(Step.HELLO, f"site {reply.site!r} is here", reply.site)
            if encoder is Presence.MISSING:
                missing_encoder.append(reply.site)
        self._require_quorum(Step.HELLO)
        if missing_encoder:
            self._send_encoder(missing_encoder)

    def _send_encoder(self, sites: list[str]) -> None:
        file = EncoderFile.of(self.folder / ENCODER_FILE, self.agreement)
        self.diary.write(Step.ENCODER, f"sending {file.size / 1e6:.1f} MB to {len(sites)} sites")
        for offset, piece in file.pieces():
            body: Body = {"offset": offset, "size": file.size}
            sites = self._fold(
                Step.ENCODER, sites, _always(body, {"piece": piece}), lambda _, letter: letter.flag("whole")
            )
        self._require_quorum(Step.ENCODER)

    def _masked_sum(self, session: bytes) -> Collector:
        """Stages 1 to 3: the sum of the masked vectors."""
        agreement = self.agreement
        collector = Collector(self.roster.keys, session, context_of(*self.digests), agreement.threshold)
        self._fold(Step.KEYS, self.nodes, _always({}, {}), lambda s, letter: collector.keys(s, letter.data("keys")))
        self._require_quorum(Step.KEYS)
        keys = by_site("keys", collector.cohort())
        self._fold(Step.SHARE, self.nodes, _always(keys, {}),
                   lambda s, letter: collector.shares(s, letter.mapping("shares")))  # fmt: skip
        self._require_quorum(Step.SHARE)
        self._fold(
            Step.MASK,
            self.nodes,
            lambda s: ({"secure": True, **by_site("shares", collector.dealt_to(s))}, {}),
            lambda s, letter: collector.add(s, self.layout.require(letter.array("vector"))),
        )
        self._require_quorum(Step.MASK)
        return collector

    def _plain_sum(self) -> tuple[Vector, list[str]]:
        """Without masks, where the agreement and every site's policy permit it: the vectors can be checked here."""
        total = np.zeros(self.layout.size, np.uint64)
        added: list[str] = []

        def add(site: str, letter: Letter) -> None:
            vector = self.layout.require(letter.array("vector"))
            agreement = self.agreement
            try:
                require_room(vector, len(agreement.sites), agreement.fraction_bits)
                require_possible(vector, self.layout, agreement.fraction_bits, agreement.max_rows)
            except (GridOverflowError, StatisticsError) as error:
                raise MessageError(str(error)) from error
            np.add(total, vector, out=total)
            added.append(site)

        self._fold(Step.MASK, self.nodes, _always({"secure": False}, {}), add)
        self._require_quorum(Step.MASK)
        return total, sorted(added)

    # From the checkpoint.

    def _go_on(self, progress: Progress) -> None:
        self.envelope = replace(self.envelope, session=bytes.fromhex(progress.session), attempt=progress.attempt + 1)
        progress.attempt += 1
        self.dropped = dict(progress.dropped)
        self.diary.write("resumed", f"going on with the {progress.stage} vectors of {len(progress.sites)} sites")
        known = self._registered()
        here = self.exchange.wait_for(node for node, site in known.items() if site in progress.sites)
        self.nodes = {known[node]: node for node in sorted(here)}
        for site in progress.sites:
            if site not in self.nodes:
                self.diary.write("resumed", f"site {site!r} {meaning(ServerCode.NEVER_CAME)}", site)

    def _unmask(self, progress: Progress) -> None:
        """Stage 4: the survivors' list agreed on where somebody is gone, and the masks taken off."""
        collector = Collector.from_bytes(self.checkpoint.data())
        survivors = collector.survivors()
        body: Body = {"survivors": survivors}
        asked = [site for site in survivors if site in self.nodes]
        try:
            if not _nobody_is_gone(collector):
                asked = self._fold(Step.AGREE, asked, _always(body, {}),
                                   lambda s, letter: collector.signature(s, letter.data("signature")))  # fmt: skip
            body = {**body, **by_site("signatures", collector.signatures())}
            self._fold(Step.UNMASK, asked, _always(body, {}),
                       lambda s, letter: collector.unmask(s, letter.data("shares")))  # fmt: skip
            total = collector.result()
        except SecureSumError as error:
            again = "start the round again when the sites are back, and it goes on from here"
            if error.reason is Reason.WRONG_DEAL:  # the others have unmasked, and do so once for an agreement
                again = "nothing was summed: make a new federation without it"
            raise RoundError(f"the masks could not be taken off the sum: {error}; {again}") from error
        self._require_possible(total)
        progress.stage, progress.dropped = Stage.SUMMED, self.dropped
        self.checkpoint.write(progress, total.astype("<u8", copy=False).data)

    def _personalize(self, progress: Progress) -> None:
        """The sum to every site that is in it; the result once all have answered or are late."""
        from fedhip.simulation import Federation

        with self._timed("aggregation"):
            beta = self._beta()
            federation = Federation(self._summed(), beta)
            _ = federation.G
        vars(federation).pop("total")  # the sum in float64, 200 MB in a wide federation, and not needed any more
        grid = federation.grid
        self.diary.write(
            "sum", f"the sum of {len(progress.sites)} sites, {grid.num_samples} rows; β = {federation.beta:.3g}"
        )
        body: Body = {"beta": federation.beta, "sites": progress.sites}
        arrays: Arrays = {"total": self._total()}

        def told(site: str, letter: Letter) -> None:
            progress.answers[site] = accuracies_in(letter)
            self.checkpoint.write(progress)

        for site in progress.sites:
            if site not in self.nodes:
                self.dropped.setdefault(site, str(ServerCode.NEVER_CAME))
        waiting = [site for site in progress.sites if site in self.nodes and site not in progress.answers]
        with self._timed("personalization"):
            self._fold(Step.PERSONALIZE, waiting, _always(body, arrays), told)
        arrays.clear()
        write_result(
            self.out,
            federation,
            self.agreement,
            sites=progress.sites,
            dropped=self.dropped,
            told={site: answer for site, answer in progress.answers.items() if answer},
            seconds=self.seconds,
        )

    def _total(self) -> Vector:
        """The sum as it was kept; read when it is needed, for in a wide federation memory is short."""
        return np.frombuffer(self.checkpoint.data(), "<u8").astype(np.uint64, copy=False)

    def _summed(self) -> GridStatistics:
        return from_vector(self._total(), self.layout, self.agreement.fraction_bits)

    def _beta(self) -> float:
        """As `Federation.of` chooses it, with nothing else in memory than what the choice takes."""
        from fedhip.core import RegularizationPath
        from fedhip.core.fixedpoint import decode

        if self.agreement.beta != "auto":
            return float(self.agreement.beta)
        return RegularizationPath(decode(self._summed())).minimize_gcv()

    # What all steps share.

    def _fold(
        self, step: Step, sites: Mapping[str, int] | list[str], letter: Callable[[str], tuple[Body, Arrays]], fold: Fold
    ) -> list[str]:
        """Ask these sites, fold each answer in as it comes, leave out who gives none; the others."""
        asked = [(site, self.nodes[site]) for site in sites]
        kept = []
        with self._timed(step):
            for reply in self._ask(step, asked, letter):
                code = reply.code
                if reply.letter is not None:
                    try:
                        fold(reply.site, reply.letter)
                        kept.append(reply.site)
                        self.diary.write(step, f"site {reply.site!r} answered", reply.site)
                        continue
                    except (MessageError, SiteDroppedError) as error:
                        code = ServerCode.GARBAGE
                        self.diary.write(step, f"site {reply.site!r}: {error}", reply.site)
                self._drop(step, reply.site, code)
        return sorted(kept)

    def _ask(
        self, step: Step, sites: list[tuple[str, int]], letter: Callable[[str], tuple[Body, Arrays]]
    ) -> Iterator[Reply]:
        envelope = replace(self.envelope, step=step)
        return self.exchange.ask(Question(site, node, Letter(envelope, *letter(site))) for site, node in sites)

    def _drop(self, step: Step, site: str, code: SiteCode | ServerCode) -> None:
        self.nodes.pop(site, None)
        self.dropped[site] = str(code)
        self.diary.write(step, f"site {site!r} {meaning(code)}", site)

    def _require_quorum(self, step: Step) -> None:
        if len(self.nodes) >= self.agreement.quorum:
            return
        why = ", ".join(f"{site}: {code}" for site, code in sorted(self.dropped.items()))
        raise QuorumError(
            f"after {step} {len(self.nodes)} of {len(self.roster.names)} sites are left, and the quorum is "
            f"{self.agreement.quorum} ({why}); nothing was summed: see to these sites and start the round again"
        )

    def _require_possible(self, total: Vector) -> None:
        try:
            most = self.agreement.max_rows * len(self.agreement.sites)
            require_possible(total, self.layout, self.agreement.fraction_bits, most)
        except StatisticsError as error:
            raise RoundError(
                f"a site sent wrong numbers under its mask: {error}. Nobody can say which; nothing was written"
            ) from error

    def _registered(self) -> dict[int, str]:
        """Sites by node, as registered."""
        path = self.state / "nodes.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            nodes = {int(node): str(site) for node, site in content.items()}
        except FileNotFoundError:
            raise RoundError(
                f"{path} is missing, so no node is known; register the sites' keys with the server"
            ) from None
        except (ValueError, AttributeError):
            raise RoundError(f"{path} is damaged; register the sites' keys with the server again") from None
        return {node: site for node, site in nodes.items() if site in self.roster.keys}

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[str(phase)] = self.seconds.get(str(phase), 0.0) + time.perf_counter() - start


def _always(body: Body, arrays: Arrays) -> Callable[[str], tuple[Body, Arrays]]:
    """The same letter to every site."""
    return lambda _: (body, arrays)


def _nobody_is_gone(collector: Collector) -> bool:
    try:
        return not collector.signatures()
    except SecureSumError:
        return False
