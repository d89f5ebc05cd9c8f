"""The sums of a round at the server: asked for, checked and kept, each a secure aggregation with fresh keys.

Every sum goes the same way; the table of sums says what it is of and what is checked. A sum is of the sites that were
in the last, and it is kept, with the weights that it was asked about, before the next begins: a server app that is
started again finds all that were made, and goes on. A sum that is shared goes back to the sites with the next question.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from fedhip.errors import ColumnError, GridOverflowError, StatisticsError
from fedhip.federation.errors import MessageError, RoundError
from fedhip.federation.secure_sum import Collector
from fedhip.federation.server.aggregation import CheatedError, NotAgreedError, Wanted, masked_sum, plain_sum, unmasked
from fedhip.federation.server.checkpoint import Data, RoundCheckpoint, RoundProgress, SumRecord, SumState
from fedhip.federation.server.cohort import SiteCohort
from fedhip.federation.status_codes import ServerCode
from fedhip.federation.sums.kind import SumContext, SumKind
from fedhip.federation.sums.logistic import model_bytes
from fedhip.federation.sums.table import FILLS, KINDS, MOMENTS, PRODUCTS, TOTALS
from fedhip.federation.sums.vector import Vector, as_bytes, digest_of, from_bytes, require_length
from fedhip.federation.transport.wire import Arrays, Body, by_site

if TYPE_CHECKING:
    from fedhip.core.logistic.sums import GridModel


#: What a question names, the latest of these that there is.
_SHARED = (*reversed(TOTALS), PRODUCTS, MOMENTS, FILLS)


@dataclass
class RoundSums:
    """The sums of one session: those that there are, and those that are asked for."""

    cohort: SiteCohort
    checkpoint: RoundCheckpoint
    progress: RoundProgress
    _digests: dict[str, str] = field(default_factory=dict)
    _unkept: tuple[SumKind, Vector] | None = None  # the latest, where it is not kept

    def get(self, kind: SumKind, body: Body | None = None, arrays: Arrays | None = None) -> Vector | None:
        """The sum of a kind of which there is one: as it was kept, or asked for now.

        None of one that is not kept, once others follow it.
        """
        if kind.name not in self.progress.asks:
            if not kind.is_kept and self.progress.sums:
                return None
            self.ask(kind, body or {}, arrays or {})
            if not kind.is_kept:
                return self._unkept[1] if self._unkept is not None else None
        return self.kept(1 + self.progress.asks.index(kind.name))

    def kept(self, number: int) -> Vector:
        """A sum as it was kept, by its number; read when it is needed, for in a wide federation memory is short."""
        return from_bytes(self.checkpoint.data(self.progress.file_of(number)))

    def digest(self, kind: SumKind) -> str | None:
        """Which sum of a kind all others are about; None where there is none."""
        if kind.name not in self.progress.asks:
            return None
        if kind.name not in self._digests:
            self._digests[kind.name] = digest_of(self.kept(1 + self.progress.asks.index(kind.name)))
        return self._digests[kind.name]

    def ask(self, kind: SumKind, body: Body, arrays: Arrays, model: GridModel | None = None) -> SumRecord:
        """One more sum of the sites that were in the last. Restart without who is proven to have spoilt it."""
        progress, cohort, before = self.progress, self.cohort, self.progress.latest
        if not progress.sums:  # nothing is kept yet: a server that is killed begins a new session
            cohort.envelope = replace(cohort.envelope, round=int(kind.is_kept))
            return self._collect(kind, self._wanted(kind, body, arrays), model)
        number, record = len(progress.sums) + 1, None
        while record is None or len(progress.sums) < number:
            progress.attempt += 1
            self.checkpoint.write(progress)  # a site gives no second answer to the same attempt
            cohort.envelope = replace(cohort.envelope, round=number, attempt=progress.attempt)
            cohort.gather(progress.latest, kind.name)
            self.say(f"sum {number}: {kind.name}, of {len(cohort.nodes)} sites")
            record = self._collect(kind, self._wanted(kind, body, arrays), model)
        for site in sorted(set(before) - set(record.sites)):
            self.say(f"site {site!r} has left: sum {number} and those after it are without its rows")
        return record

    def say(self, text: str) -> None:
        """A line in the log of events."""
        self.cohort.events.write("fit", text)

    def _about(self) -> str:
        """Which sum the next is about, by its digest: the latest of those that all others depend on."""
        return next((found for kind in _SHARED if (found := self.digest(kind)) is not None), "")

    def _bound_to(self, *kinds: SumKind) -> str | None:
        """The digests of those sums that there are, as a site has them (`Session.bound_to`)."""
        return "\n".join(found for kind in kinds if (found := self.digest(kind)) is not None) or None

    def _wanted(self, kind: SumKind, body: Body, arrays: Arrays) -> Wanted:
        """The question of a sum, with the sum before where that is shared."""
        progress, agreement = self.progress, self.cohort.agreement
        if progress.sums:
            latest = KINDS[progress.asks[-1]]
            if latest.shared_as is not None:
                arrays = {**arrays, latest.shared_as: self.kept(len(progress.sums))}
            body = {**body, "ask": kind.name, "sum": self._about()}
        elif self._unkept is not None:
            latest, total = self._unkept
            body, arrays = {**body, "ask": kind.name}, {**arrays, str(latest.shared_as): total}
        if progress.proofs:
            body |= by_site("proofs", {site: bytes.fromhex(proof) for site, proof in progress.proofs.items()})

        def require(vector: Vector) -> Vector:
            require_length(vector, kind.length(agreement))
            if not agreement.secure_sum:
                try:
                    kind.check_part(vector, agreement)
                except (GridOverflowError, StatisticsError) as error:
                    raise MessageError(str(error)) from error
            return vector

        return Wanted(require, body, arrays, self._bound_to(MOMENTS, PRODUCTS), self._bound_to(*TOTALS))

    def _collect(self, kind: SumKind, wanted: Wanted, model: GridModel | None) -> SumRecord:
        """The sum, under masks or plain, and who is in it, as the latest of the progress."""
        progress, cohort = self.progress, self.cohort
        number = len(progress.sums) + 1
        bits, files = (0, {}) if model is None else (model.bits, {f"model-{number}": model_bytes(model)})
        if not cohort.agreement.secure_sum:
            total, sites = plain_sum(cohort, wanted, kind.length(cohort.agreement))
            record = SumRecord(kind.name, sites, bits)
            self._check(kind, total, record)
            progress.sums.append(record)
            self._keep(**{progress.file_of(len(progress.sums)): as_bytes(total)}, **files)
            return record
        collector = masked_sum(cohort, wanted)
        record, progress.attempt = SumRecord(kind.name, collector.survivors(), bits), cohort.envelope.attempt
        if not kind.is_kept:
            total = unmasked(cohort, collector)
            self._check(kind, total, record)
            self._unkept = kind, total
            return record
        progress.sums.append(record)
        progress.stage = SumState.MASKED
        self._keep(collector=collector.to_bytes(), **files)
        self.unmask()
        return record

    def unmask(self) -> None:
        """Take the masks off the latest sum, check and keep it; or keep that it is to be asked for again."""
        progress = self.progress
        try:
            total = unmasked(self.cohort, Collector.from_bytes(self.checkpoint.data("collector")))
        except NotAgreedError:
            if len(progress.sums) > 1:  # nobody has unmasked anything: this sum can be asked for again
                progress.sums.pop()
                progress.stage = SumState.SUMMED
                self._keep(collector=None)
            raise
        except CheatedError as error:
            if not any(total.name in progress.asks[:-1] for total in TOTALS):
                raise  # a new session begins without the site
            self.cohort.drop("unmask", error.site, ServerCode.CHEATED)
            self.cohort.events.write(
                "again", f"sum {len(progress.sums)} is asked for again without site {error.site!r}"
            )
            progress.sums.pop()
            progress.stage, progress.again = SumState.SUMMED, error.others
            progress.proofs[error.site] = error.proof.hex()
            self._keep(collector=None)
            return
        record = progress.sums[-1]
        self._check(KINDS[record.ask], total, record)
        progress.stage, progress.again, progress.proofs = SumState.SUMMED, [], {}
        self._keep(collector=None, **{progress.file_of(len(progress.sums)): as_bytes(total)})

    def _check(self, kind: SumKind, total: Vector, record: SumRecord) -> None:
        """Refuse a sum that no rows have: under masks it is all that can be looked at."""
        progress = self.progress
        agreement, counts = self.cohort.agreement, None
        if kind not in TOTALS and (total_of := progress.total) is not None:
            vector = self.kept(1 + progress.asks.index(total_of.name))
            counts = vector[-agreement.layout.d :].view(np.int64).copy()
        try:
            kind.check_sum(total, SumContext(agreement, counts, record.sites == progress.summed, len(record.sites)))
        except ColumnError as error:
            raise RoundError(f"{error}; nothing was written. Make a new federation when that is done") from None
        except StatisticsError as error:
            raise RoundError(
                f"a site sent wrong numbers under its mask: {error}. Nobody can say which; nothing was written"
            ) from error

    def _keep(self, **data: Data | None) -> None:
        self.progress.dropped = dict(self.cohort.dropped)
        self.checkpoint.write(self.progress, **data)
