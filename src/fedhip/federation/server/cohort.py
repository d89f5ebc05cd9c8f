"""The sites that take part, as the server knows them: it asks them, folds their answers in, and leaves out who errs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType

from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.roster import Roster
from fedhip.federation.errors import MessageError, RoundError, SetupError
from fedhip.federation.secure_sum import SecureSumError
from fedhip.federation.server.event_log import EventLog
from fedhip.federation.status_codes import ServerCode, SiteCode, meaning
from fedhip.federation.transport.exchange import Exchange, SiteQuestion, SiteReply
from fedhip.federation.transport.wire import Arrays, Body, Envelope, Letter, RoundStep

#: What to do where what there is of a round was kept.
GO_ON = "start the round again when the sites are back, and it goes on from here"
#: What to do where sites of a finished sum were away when it was handed out.
HAND_OUT = "start the round again when they are back, and they get the same sum"

#: In the coordinator's folder, the sites whose keys were taken back.
REVOKED = "revoked.json"

#: What is asked of each site, by its name.
Asked = Callable[[str], tuple[Body, Arrays]]
Fold = Callable[[str, Letter], object]


@dataclass
class SiteCohort:
    """Who is here, who was left out and why, and the envelope of what they are asked.

    `accused` are dealers, by those who cannot open what they dealt, with their nodes. `greetings` are the answers to
    hello that have the keys of the first sum in them, until that is made.
    """

    agreement: Agreement
    roster: Roster
    exchange: Exchange
    state: Path
    envelope: Envelope
    nodes: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    accused: dict[str, dict[str, int]] = field(default_factory=dict)
    greetings: dict[str, Letter] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.events = EventLog(self.state / "progress.jsonl")

    @property
    def digests(self) -> tuple[str, str]:
        """Of agreement and roster."""
        return self.envelope.agreement, self.envelope.roster

    def gather(self, sites: Iterable[str], step: str, *, wait: bool = True) -> None:
        """Those of these sites that are connected, also if they were left out before; waits for all, if asked to.

        But for those that are proven to have cheated.
        """
        known = self.registered()
        cheaters = {site for site, code in self.dropped.items() if code == ServerCode.CHEATED}
        wanted = {node: site for node, site in known.items() if site in set(sites) - cheaters}
        if wait:
            self.events.asking("waiting", self.envelope.round, wanted.values())
        here = self.exchange.wait_for(wanted) if wait else self.exchange.connected(wanted)
        # A site that is connected twice stays where it said hello.
        settled = {site: node for site, node in self.nodes.items() if node in here}
        self.nodes = {wanted[node]: node for node in sorted(here)} | settled
        for site in sorted(sites):
            if site in self.nodes:
                self.dropped.pop(site, None)
            elif site not in self.dropped:
                self.drop(step, site, self.why_away(site))

    def fold(
        self,
        step: RoundStep,
        sites: Iterable[str],
        asked: Asked,
        fold: Fold,
        came: Mapping[str, Letter] = MappingProxyType({}),
    ) -> list[str]:
        """Ask these sites, fold each answer in as it comes, leave out who gives none; the others.

        Who has an answer in `came` already is not asked.
        """
        nodes = [(site, self.nodes[site]) for site in sites]
        here = [SiteReply(site, node, came[site]) for site, node in nodes if site in came]
        others = [(site, node) for site, node in nodes if site not in came]
        kept = []
        with self.timed(step):
            for reply in chain(here, self.ask(step, others, asked) if others else ()):
                code = reply.code
                if reply.letter is not None:
                    try:
                        fold(reply.site, reply.letter)
                        kept.append(reply.site)
                        if reply.site in came:
                            continue
                        self.events.write(step, f"site {reply.site!r} answered", reply.site, SiteCode.OK)
                        continue
                    except (MessageError, SecureSumError) as error:
                        code = ServerCode.GARBAGE
                        self.events.write(step, f"site {reply.site!r}: {error}", reply.site)
                self.drop(step, reply.site, code)
                if reply.accused is not None and reply.accused in self.roster.keys:
                    self.accused.setdefault(reply.accused, {})[reply.site] = reply.node
                    self.events.write(step, f"site {reply.site!r} says that {reply.accused!r} dealt them", reply.site)
        return sorted(kept)

    def begin_again_without_accused(self) -> bool:
        """Another attempt without dealers that several sites accuse, if there are any: nothing was unmasked.

        It is word against word. One site alone may be the one that errs; it stays out, as who gives no answer.
        """
        wrong = {dealer: sites for dealer, sites in self.accused.items() if len(sites) > 1}
        for sites in wrong.values():
            self.nodes |= sites
            self.dropped = {site: code for site, code in self.dropped.items() if site not in sites}
        for dealer in wrong:
            self.drop(RoundStep.SHARE, dealer, ServerCode.ACCUSED)
        self.accused = {}
        self.envelope = replace(self.envelope, attempt=self.envelope.attempt + bool(wrong))
        return bool(wrong)

    def ask(self, step: RoundStep, nodes: list[tuple[str, int]], asked: Asked) -> Iterator[SiteReply]:
        """Ask sites at their nodes, and hand over what comes."""
        envelope = replace(self.envelope, step=step)
        self.events.asking(step, envelope.round, [site for site, _ in nodes])
        return self.exchange.ask(SiteQuestion(site, node, Letter(envelope, *asked(site))) for site, node in nodes)

    def drop(self, step: str, site: str, code: SiteCode | ServerCode) -> None:
        """Go on without a site."""
        self.nodes.pop(site, None)
        self.dropped[site] = str(code)
        self.events.write(step, f"site {site!r} {meaning(code)}", site, str(code))

    def require_quorum(self, step: RoundStep) -> None:
        """Stop where too few are left."""
        if len(self.nodes) >= self.agreement.quorum:
            return
        why = ", ".join(f"{site}: {code}" for site, code in sorted(self.dropped.items()))
        where, then = f"after {step}", "nothing was summed: see to these sites and start the round again"
        if self.envelope.round > 1:
            where, then = f"in sum {self.envelope.round}, after {step},", GO_ON
        raise RoundError(
            f"{where} {len(self.nodes)} of {len(self.roster.names)} sites are left, and the quorum is "
            f"{self.agreement.quorum} ({why}); {then}"
        )

    def why_away(self, site: str) -> ServerCode:
        """Of a site that is not connected."""
        return ServerCode.REVOKED if site in revoked_in(self.state.parent) else ServerCode.NEVER_CAME

    def registered(self) -> dict[int, str]:
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
    def timed(self, phase: str) -> Iterator[None]:
        """Add to the seconds of a phase."""
        start = time.perf_counter()
        yield
        self.seconds[str(phase)] = self.seconds.get(str(phase), 0.0) + time.perf_counter() - start


def revoked_in(folder: Path) -> dict[str, str]:
    """The sites that a coordinator's folder names as revoked, and since when."""
    path = folder / REVOKED
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {str(site): str(since) for site, since in content["sites"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SetupError(f"{path} is damaged, so nobody can say who is let in; restore it") from None


def always(body: Body, arrays: Arrays) -> Asked:
    """The same letter to every site."""
    return lambda _: (body, arrays)
