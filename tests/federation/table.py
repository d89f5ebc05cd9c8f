"""Four sites and a server that asks what it likes, without an engine between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedhip import __version__
from fedhip.federation.agreement.roster import Roster
from fedhip.federation.codes import SiteCode
from fedhip.federation.secure_sum import Collector
from fedhip.federation.site.site import Site
from fedhip.federation.transport.wire import Envelope, Letter, Step, by_site, context_of
from tests.federation.samples import FOUR, Trial


class Table:
    """Four sites and a server that asks what it likes."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        self.trial = Trial.make(tmp_path, **settings)
        self.sites = {site: Site(self.trial.site_folder(site), self.trial.data(site)) for site in FOUR}
        self.roster = Roster.read(self.trial.folder / "roster.json")
        self.digests = self.trial.agreement.digest(), self.roster.digest()
        self.begin()

    def begin(self, session: bytes = b"s" * 32) -> None:
        self.envelope = Envelope(session, *self.digests, Step.HELLO)
        self.collector = Collector(
            self.roster.keys,
            session,
            context_of(Letter(replace(self.envelope, step=Step.KEYS)), None, None),
            self.trial.agreement.threshold,
        )

    def ask(self, site: str, step: Step, body: Any = None, arrays: Any = None, **envelope: Any) -> Letter:
        if step is Step.HELLO:
            body = {"version": __version__, **(body or {})}
        question = Letter(replace(self.envelope, step=step, **envelope), body or {}, arrays or {})
        return self.sites[site].handle(question, self.trial.node(site))

    def code(self, *question: Any, **envelope: Any) -> SiteCode:
        """The code, after a look that nothing else is in the answer."""
        answer = self.ask(*question, **envelope)
        assert (answer.body, answer.arrays) == ({}, {}) or answer.code is SiteCode.OK
        return answer.code

    def until(self, step: Step) -> None:
        """All sites, up to this step and with it."""
        steps = list(self._steps())
        for name, run in steps:
            run()
            if name is step:
                return

    def _steps(self) -> Iterator[tuple[Step, Any]]:
        yield Step.HELLO, lambda: [self._ok(s, Step.HELLO) for s in FOUR]
        yield Step.KEYS, self._keys
        yield Step.SHARE, self._share
        yield Step.MASK, self._mask

    def _keys(self) -> None:
        for site in FOUR:
            self.collector.keys(site, self._ok(site, Step.KEYS).data("keys"))

    def _share(self) -> None:
        keys = by_site("keys", self.collector.cohort())
        for site in FOUR:
            self.collector.shares(site, self._ok(site, Step.SHARE, keys).mapping("shares"))

    def _mask(self) -> None:
        for site in FOUR:
            answer = self._ok(site, Step.MASK, self.dealt(site))
            self.collector.add(site, answer.array("vector"), answer.data("signature"))

    def dealt(self, site: str) -> dict[str, Any]:
        return {"secure": True, **by_site("shares", self.collector.dealt_to(site))}

    def unmask(self, *survivors: str, signatures: dict[str, bytes] | None = None) -> dict[str, Any]:
        return {"survivors": list(survivors), **by_site("signatures", signatures or {})}

    def _ok(self, *question: Any) -> Letter:
        answer = self.ask(*question)
        assert answer.code is SiteCode.OK, self.trial.log(question[0])
        return answer
