"""Four sites and a server that asks what it likes, without an engine between: one sum, or several by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedhip import __version__
from fedhip.core.logistic.sums import GridModel
from fedhip.federation.agreement.roster import Roster
from fedhip.federation.secure_sum import Collector
from fedhip.federation.site.site import Site
from fedhip.federation.status_codes import SiteCode
from fedhip.federation.sums.logistic import model_arrays, model_body
from fedhip.federation.sums.vector import Layout, Vector, digest_of, to_vector
from fedhip.federation.transport.wire import Envelope, Letter, RoundStep, by_site, context_of
from tests.federation.samples import CLASSES, FOUR, WIDTH, Trial, sum_of, survey_of


class Table:
    """Four sites and a server that asks what it likes."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        self.trial = Trial.make(tmp_path, **settings)
        self.sites = {site: Site(self.trial.site_folder(site), self.trial.data(site)) for site in FOUR}
        self.roster = Roster.read(self.trial.folder / "roster.json")
        self.digests = self.trial.agreement.digest(), self.roster.digest()
        self.begin()

    def begin(self, session: bytes = b"s" * 32) -> None:
        self.envelope = Envelope(session, *self.digests, RoundStep.HELLO)
        self.collector = Collector(
            self.roster.keys,
            session,
            context_of(Letter(replace(self.envelope, step=RoundStep.KEYS)), None, None),
            self.trial.agreement.threshold,
        )

    def ask(self, site: str, step: RoundStep, body: Any = None, arrays: Any = None, **envelope: Any) -> Letter:
        if step is RoundStep.HELLO:
            body = {"version": __version__, **(body or {})}
        question = Letter(replace(self.envelope, step=step, **envelope), body or {}, arrays or {})
        return self.sites[site].handle(question, self.trial.node(site))

    def code(self, *question: Any, **envelope: Any) -> SiteCode:
        """The code, after a look that nothing else is in the answer."""
        answer = self.ask(*question, **envelope)
        assert (answer.body, answer.arrays) == ({}, {}) or answer.code is SiteCode.OK
        return answer.code

    def until(self, step: RoundStep) -> None:
        """All sites, up to this step and with it."""
        steps = list(self._steps())
        for name, run in steps:
            run()
            if name is step:
                return

    def _steps(self) -> Iterator[tuple[RoundStep, Any]]:
        yield RoundStep.HELLO, lambda: [self._ok(s, RoundStep.HELLO) for s in FOUR]
        yield RoundStep.KEYS, self._keys
        yield RoundStep.SHARE, self._share
        yield RoundStep.MASK, self._mask

    def _keys(self) -> None:
        for site in FOUR:
            self.collector.keys(site, self._ok(site, RoundStep.KEYS).data("keys"))

    def _share(self) -> None:
        keys = by_site("keys", self.collector.cohort())
        for site in FOUR:
            self.collector.shares(site, self._ok(site, RoundStep.SHARE, keys).mapping("shares"))

    def _mask(self) -> None:
        for site in FOUR:
            answer = self._ok(site, RoundStep.MASK, self.dealt(site))
            self.collector.add(site, answer.array("vector"), answer.data("signature"))

    def dealt(self, site: str) -> dict[str, Any]:
        return {"secure": True, **by_site("shares", self.collector.dealt_to(site))}

    def unmask(self, *survivors: str, signatures: dict[str, bytes] | None = None) -> dict[str, Any]:
        return {"survivors": list(survivors), **by_site("signatures", signatures or {})}

    def _ok(self, *question: Any) -> Letter:
        answer = self.ask(*question)
        assert answer.code is SiteCode.OK, self.trial.log(question[0])
        return answer


LAYOUT = Layout(WIDTH, len(CLASSES))


class LaterTable(Table):
    """Four sites whose statistics were summed; later sums of the logistic head are asked for by hand."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        usual = {"head": "logistic", "gradient_rounds": 3, "columns": "plain", "quorum": 3, "threshold": 3}
        settings = {**usual, **settings}
        super().__init__(tmp_path, **settings)
        self.total = to_vector(sum_of(FOUR, self.trial.agreement))
        self.digest = digest_of(self.total)
        self.attempt = 1
        self.about: str | None = None

    def statistics(self) -> None:
        self.until(RoundStep.MASK)
        for site in FOUR:
            self._ok(site, RoundStep.UNMASK, self.unmask(*FOUR))

    def question(self, ask: str, *models: GridModel) -> tuple[dict[str, Any], dict[str, Any]]:
        body = {"ask": str(ask), "sum": self.digest, **model_body(models)}
        return body, {"total": self.total} if ask == "temperature" else dict(model_arrays(models)) if models else {}

    def told(self, ask: str) -> tuple[str | None, str | None]:
        """The digests of the sums that the sites have by then: the first, and that of the statistics."""
        return self.about, None if ask == "statistics" else self.digest

    def keys(self, site: str, number: int, *question: Any, attempt: int | None = None) -> SiteCode:
        """What a site says to the first question of a sum."""
        self.attempt += 1
        return self.code(site, RoundStep.KEYS, *question, round=number, attempt=attempt or self.attempt)

    def sum(
        self, number: int, *question: Any, sites: Sequence[str] = FOUR, until: RoundStep = RoundStep.UNMASK
    ) -> Vector | Collector:
        """A whole sum of these sites, or all of it until a step."""
        self.attempt += 1
        of_sum: Any = {"round": number, "attempt": self.attempt}
        envelope = replace(self.envelope, step=RoundStep.KEYS, **of_sum)
        context = context_of(Letter(envelope, *question), *self.told(question[0]["ask"]))
        collector = Collector(self.roster.keys, envelope.sum_session, context, self.trial.agreement.threshold)

        def ok(site: str, step: RoundStep, *rest: Any) -> Any:
            answer = self.ask(site, step, *rest, **of_sum)
            assert answer.code is SiteCode.OK, self.trial.log(site)
            return answer

        for site in sites:
            collector.keys(site, ok(site, RoundStep.KEYS, *question).data("keys"))
        cohort = by_site("keys", collector.cohort())
        for site in sites:
            collector.shares(site, ok(site, RoundStep.SHARE, cohort).mapping("shares"))
        for site in sites:
            dealt = {"secure": True, **by_site("shares", collector.dealt_to(site))}
            answer = ok(site, RoundStep.MASK, dealt)
            collector.add(site, answer.array("vector"), answer.data("signature"))
        if until is RoundStep.MASK:
            return collector
        for site in collector.survivors():
            collector.unmask(site, ok(site, RoundStep.UNMASK, self.unmask(*sites)).data("shares"))
        return collector.result()


class ThreeSums(LaterTable):
    """Four sites that are asked what their columns are like, for their statistics, and for what β is chosen by."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        super().__init__(tmp_path, **{"head": "ridge", "gradient_rounds": None, "columns": "sum", **settings})
        self.moments = survey_of(FOUR)
        self.survey = self.statistics  # the first sum by hand, whatever it is of
        self.about = digest_of(self.moments)

    def for_statistics(self, **other: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"ask": "statistics", "sum": self.about, **other}, {"moments": self.moments}

    def for_beta(self, **other: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        body = {"ask": "beta", "sum": self.digest, "sites": list(FOUR), **other}
        return body, {"total": self.total}

    def last(self, **other: Any) -> dict[str, Any]:
        folds = {f"beta-{fold}": 0.5 for fold in range(5)}
        return {"sites": list(FOUR), "beta": 1.0, "sum": self.digest, **folds, **other}

    def until_beta(self) -> None:
        self.survey()
        self.sum(2, *self.for_statistics())


def model(scale: float = 1.0) -> GridModel:
    weights = torch.from_numpy(np.random.default_rng(3).normal(size=(WIDTH + 1, len(CLASSES))))
    return GridModel.of(scale * weights)
