"""The sums after the first, at the server: each a secure sum of its own, with fresh keys.

The first is of what the columns or the lift follow from, and that of the statistics the second; or it is the first.

A sum is of the sites that were in the last, and it is kept, with the weights that it was asked about, before the next
begins: a server app that is started again finds all that were made, and goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from fedhip.federation.server.checkpoint import Checkpoint, LaterSum, Progress, Stage
from fedhip.federation.server.cohort import Cohort
from fedhip.federation.server.summing import Wanted, masked_sum, plain_sum
from fedhip.federation.sums.later import Ask, model_bytes
from fedhip.federation.sums.priors import later_length
from fedhip.federation.sums.vector import Vector, as_bytes, digest_of, from_bytes, require_length
from fedhip.federation.transport.wire import Arrays, Body, by_site

if TYPE_CHECKING:
    from fedhip.core.logistic.sums import GridModel


@dataclass
class LaterRounds:
    """The later sums of a round, those that there are and those that are asked for.

    `unmask` takes the masks off the latest sum of the progress, and keeps it.
    """

    cohort: Cohort
    checkpoint: Checkpoint
    progress: Progress
    unmask: Callable[[Progress], None]

    @property
    def total(self) -> Vector:
        """The sum of the statistics."""
        return self.kept("total")

    @cached_property
    def digest(self) -> str:
        """Which sum of the statistics all others are about."""
        return digest_of(self.total)

    def kept(self, name: str) -> Vector:
        """A sum as it was kept."""
        return from_bytes(self.checkpoint.data(name))

    def found(self, ask: Ask) -> Vector | None:
        """The sum of what is asked for once, if there is one."""
        numbers = [number for number, record in enumerate(self.progress.later, start=2) if record.ask == ask]
        return self.kept(f"sum-{numbers[0]}") if numbers else None

    def statistics(self, require: Callable[[Vector], Vector]) -> None:
        """The sum of the statistics, about the first sum, by which everybody knows columns and lift."""
        moments = self.kept("moments")
        about = digest_of(moments)
        self._add(Ask.STATISTICS, Wanted(require, {"sum": about}, {"moments": moments}, about))

    def add(self, ask: Ask, body: Body, arrays: Arrays, model: GridModel | None = None) -> LaterSum:
        """One more sum after the statistics'; these go along with the first."""
        size = later_length(ask, self.cohort.agreement)
        if self.progress.asks[-1] == Ask.STATISTICS:
            arrays = {**arrays, "total": self.total}
        moments = digest_of(self.kept("moments")) if self.cohort.agreement.has_first_sum else None
        body = {**body, "sum": self.digest}
        wanted = Wanted(lambda vector: require_length(vector, size), body, arrays, moments, self.digest)
        return self._add(ask, wanted, model)

    def _add(self, ask: Ask, wanted: Wanted, model: GridModel | None = None) -> LaterSum:
        """One more sum of the sites that were in the last; kept. Again without who is proven to have spoilt it."""
        progress, cohort, before = self.progress, self.cohort, self.progress.latest
        number = progress.round + 1
        while progress.round < number:
            progress.attempt += 1
            self.checkpoint.write(progress)  # a site gives no second answer to the same attempt
            cohort.envelope = replace(cohort.envelope, round=number, attempt=progress.attempt)
            cohort.gather(progress.latest, ask)
            self.say(f"sum {number}: {ask}, of {len(cohort.nodes)} sites")
            proofs = {site: bytes.fromhex(proof) for site, proof in progress.proofs.items()}
            body = {**wanted.body, "ask": ask.value, **(by_site("proofs", proofs) if proofs else {})}
            self._collect(replace(wanted, body=body), ask, model)
        record = progress.later[-1]
        for site in sorted(set(before) - set(record.sites)):
            self.say(f"site {site!r} has left: sum {number} and those after it are without its rows")
        return record

    def say(self, text: str) -> None:
        """A line in the diary."""
        self.cohort.diary.write("fit", text)

    def _collect(self, wanted: Wanted, ask: Ask, model: GridModel | None) -> None:
        """The sum, under masks or plain, and who is in it, as the latest of the progress."""
        progress, cohort = self.progress, self.cohort
        bits, files = (0, {}) if model is None else (model.bits, {f"model-{progress.round + 1}": model_bytes(model)})
        if cohort.agreement.secure_sum:
            collector = masked_sum(cohort, wanted)
            progress.later.append(LaterSum(ask.value, collector.survivors(), bits))
            progress.attempt = cohort.envelope.attempt
            progress.stage = Stage.MASKED
            self.checkpoint.write(progress, collector=collector.to_bytes(), **files)
            self.unmask(progress)
        else:
            vector, sites = plain_sum(cohort, wanted, later_length(ask, cohort.agreement))
            progress.later.append(LaterSum(ask.value, sites, bits))
            self.checkpoint.write(progress, **{progress.kept_as: as_bytes(vector)}, **files)
