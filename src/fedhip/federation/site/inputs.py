"""What a site makes its vectors and its model of: its rows, and the sums that came back to it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedhip.errors import FedHiPError, GridOverflowError, StatisticsError
from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.privacy import public_of
from fedhip.federation.errors import MessageError, SetupError
from fedhip.federation.site.budget import noise_of
from fedhip.federation.site.folder import SiteFolder
from fedhip.federation.site.ledger import SumLedger
from fedhip.federation.site.rows import SiteRows, require_size
from fedhip.federation.site.state import Session, SiteState
from fedhip.federation.status_codes import SiteCode, SiteRefusalError
from fedhip.federation.sums.kind import ModelSums, SiteInputs, SumKind
from fedhip.federation.sums.statistics import encoding_of, lift_of
from fedhip.federation.sums.table import FILLS, MOMENTS, PLAIN, PRODUCTS, WIDE
from fedhip.federation.sums.tables import filled_table
from fedhip.federation.sums.vector import Vector, digest_of
from fedhip.federation.sums.wide import lift_by, wide_of
from fedhip.federation.transport.wire import Letter

if TYPE_CHECKING:
    from fedhip.data.tables import Description
    from fedhip.features.lifts.lift import Lift
    from fedhip.privacy.noise import Bytes
    from fedhip.privacy.public import PublicMap
    from fedhip.simulation.client import Client
    from fedhip.simulation.encoding import RowEncoding


@dataclass
class Inputs:
    """Of one question. Everything is read when it is first asked for.

    `sums` are those of the features alone, or with a lift beside them that competes.
    """

    site: SiteFolder
    state: SiteState
    session: Session
    question: Letter
    data: Path
    weights: Path | None
    device: str | None
    sums: ModelSums = PLAIN

    @property
    def agreement(self) -> Agreement:
        """What was agreed on, of these features."""
        return self.site.agreement if self.sums is PLAIN else wide_of(self.site.agreement)

    @cached_property
    def wide(self) -> Inputs:
        """With the lift that competes."""
        return replace(self, sums=WIDE)

    def log(self, text: str, *, warning: bool = False) -> None:
        """A line in the site's own log."""
        self.state.write_log(logging.WARNING if warning else logging.INFO, text)

    @cached_property
    def rows(self) -> SiteRows:
        """The rows, as they lie on the disk."""
        site, cache = self.site, self.state.cache
        return SiteRows.read(self.data, site.name, site.agreement, site.policy, cache=cache, device=self.device)

    @cached_property
    def raw_client(self) -> Client:
        """The rows as features, before a lift."""
        client = self.rows.client(
            self.site.agreement, cache=self.state.cache, weights=self.weights, device=self.device, table=self.table
        )
        require_size(client.train[0], self.site.agreement)
        return client

    @property
    def table(self) -> Description | None:
        """What turns tables into features, and what fills missing values, where sites bring tables."""
        fills = self.received(FILLS) if FILLS.count(self.agreement) else None
        return filled_table(self.agreement, fills)

    @cached_property
    def client(self) -> Client:
        """The rows as features of the agreed width, lifted where that is agreed on."""
        from fedhip.simulation.lifting import lift_clients

        lift = self.lift
        return self.raw_client if lift is None else lift_clients(lift, [self.raw_client])[0]

    @property
    def moments(self) -> Vector:
        """The survey, or what else says what the columns are like."""
        return self.received(MOMENTS)

    @property
    def lift(self) -> Lift | None:
        """What everybody lifts by."""
        if self.sums is WIDE:
            return lift_by(self.moments, self.received(PRODUCTS), self.site.agreement)
        return None if self.agreement.lift == "none" else lift_of(self.moments, self.agreement)

    @cached_property
    def encoding(self) -> RowEncoding:
        """How rows become part of the sum of the statistics."""
        has = MOMENTS.count(self.site.agreement)
        return encoding_of(self.agreement, self.moments if has else None)

    @cached_property
    def public(self) -> PublicMap:
        """With differential privacy: what rows are clipped and projected by, if it is what everybody agreed on."""
        try:
            return public_of(self.agreement)
        except SetupError as error:
            raise SiteRefusalError(SiteCode.CLIPPING, str(error)) from error

    def randomness(self, exact: Vector) -> Bytes:
        """What the noise on these numbers is made of; which release that is, the session keeps.

        Refused where rows have changed since the session began: they would be paid for as those that were here then.
        """
        if self.session.data is not None:
            with SumLedger.open(witness=self.state.witness) as sums:
                now = sums.fingerprint(self.rows, self.agreement.classes)
            if now.digest != self.session.data:
                raise SiteRefusalError(
                    SiteCode.DATA, "the training rows have changed since this session began; begin anew with them"
                )
        self.session.release, found = noise_of(self.site, self.state, exact)
        return found

    @property
    def total(self) -> Vector:
        """The sum of the statistics; not held, for in a wide federation it is 100 MB."""
        if self.question.text("sum") != self.session.received.get(str(self.sums.statistics.shared_as)):
            raise SiteRefusalError(
                SiteCode.TOTAL, "the server speaks of another sum than the one that came, or of none"
            )
        return self.received(self.sums.statistics)

    def received(self, kind: SumKind) -> Vector:
        """A sum that came back to this site with an earlier question, or with this one."""
        name = str(kind.shared_as)
        if name not in self.session.received:
            raise SiteRefusalError(SiteCode.ORDER, f"the sum {kind.name!r} has not come")
        vector = self.state.received(name)
        if vector is None or digest_of(vector) != self.session.received[name]:
            raise SiteRefusalError(SiteCode.FOLDER, f"the sum {kind.name!r} is no longer there, or damaged")
        return vector


def make_vector(kind: SumKind, inputs: SiteInputs) -> Vector:
    """What this site gives to a sum, checked as nobody can check it under a mask."""
    from fedhip.errors import LossError
    from fedhip.utils.parallel import one_thread

    if inputs.agreement.epsilon is not None and not kind.has_noise:
        raise SiteRefusalError(SiteCode.POLICY, f"the sum {kind.name!r} has no noise, and everything told is to have")
    if kind.stage.is_of_rows:
        vector = kind.vector(inputs)
    else:
        try:
            with one_thread():  # what is solved has the same bits on any machine
                vector = kind.vector(inputs)
        except LossError as error:
            raise SiteRefusalError(SiteCode.LOSS, str(error)) from error
        except (GridOverflowError, SiteRefusalError, MessageError):
            raise
        except FedHiPError as error:
            raise _does_not_fit(error) from error
    kind.check_own(vector, inputs)
    return vector


def require_others(kind: SumKind, total: Vector, inputs: SiteInputs) -> None:
    """Refuse a sum that came back and, less what this site gave to it, is no sum of the others."""
    try:
        kind.check_rest(total - kind.vector(inputs), inputs)
    except StatisticsError as error:
        raise _does_not_fit(error) from error


def _does_not_fit(error: FedHiPError) -> SiteRefusalError:
    return SiteRefusalError(SiteCode.TOTAL, f"the sum that came does not fit this site's rows: {error}")
