"""A site's view of the user's ledger of sums: what it asks before each step, and what it writes down."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from fedhip.federation.site.budget import Budget
from fedhip.federation.site.folder import SiteFolder
from fedhip.federation.site.ledger import Allowance, SumLedger, SumRequest
from fedhip.federation.site.rows import SiteRows
from fedhip.federation.site.state import Session, SiteState
from fedhip.federation.status_codes import SiteCode, SiteRefusalError
from fedhip.utils.files import write_private


@dataclass(frozen=True)
class SessionLedger:
    """The ledger for one session of a site."""

    site: SiteFolder
    state: SiteState
    session: Session
    allow: Allowance | None = None

    def begin(self, rows: SiteRows) -> None:
        """At hello: refuse a second sum of this agreement, and one too near to a sum of another; know the rows.

        Sums of this agreement are compared once it is known who is in the next, in `require` and `take_part`.
        """
        site, question = self.site, self._question
        with SumLedger.open(witness=self.state.witness, allow=self.allow) as sums:
            data = sums.fingerprint(rows, site.agreement.classes)
            if site.agreement.secure_sum:
                sums.require_new_session(question)
                if (before := sums.finished(question)) is not None and not site.policy.allow_other_sums:
                    raise SiteRefusalError(
                        SiteCode.SECOND_SUM,
                        f"a sum of this agreement was finished in session {before[:12]}…, by the ledger of sums, of "
                        "which this folder knows nothing: was it restored? A second is refused (allow_other_sums in "
                        "site.toml)",
                    )
                # Who is in a sum of this agreement is known when keys come; until then all who may be.
                sums.require_difference(
                    question,
                    site.agreement.sites,
                    data,
                    site.policy.minimum_difference,
                    self.allow,
                    other_agreements=True,
                )
            if (budget := self._budget) is not None:
                budget.require(sums, question, data)
            sums.keep_data(data)
        self.session.data = data.digest

    def require(self, members: Iterable[str]) -> None:
        """Refuse a sum of these sites, if it is too near to one before, or was unmasked before."""
        members = list(members)
        with SumLedger.open(witness=self.state.witness) as sums:
            sums.require_one_unmasking(self._question, members)
            self._require(sums, members)

    def take_part(self, event: str, members: Iterable[str]) -> None:
        """The same, and write down that this site takes part, before its part leaves."""
        members = list(members)
        with SumLedger.open(witness=self.state.witness) as sums:
            if event == "unmasked":
                sums.require_one_unmasking(self._question, members)
            if event != "plain":
                self._require(sums, members)
            if (budget := self._budget) is not None and event != "unmasked":
                if (release := self.session.release) is None:
                    raise SiteRefusalError(SiteCode.ORDER, "nothing has noise yet that could leave")
                left = budget.pay(sums, self._question, sums.data(self._data), release)
                self.state.write_log(logging.INFO, left)
            sums.took_part(self._question, event, members, sums.data(self._data))
            write_private(self.state.witness, sums.head)

    @property
    def cheaters(self) -> set[str]:
        """Who is proven to have cheated under this agreement."""
        with SumLedger.open(witness=self.state.witness) as sums:
            return sums.cheaters(self._question)

    @property
    def spoilt(self) -> set[str]:
        """The sessions of this agreement that they cheated in."""
        with SumLedger.open(witness=self.state.witness) as sums:
            return sums.spoilt(self._question)

    @property
    def is_spoilt(self) -> bool:
        """Whether a site is proven to have cheated in the latest sum of this session."""
        with SumLedger.open(witness=self.state.witness) as sums:
            return sums.is_spoilt(self._question, self.session.attempt)

    def cheated(self, dealer: str) -> None:
        """Write down that it is proven that a site has cheated in the latest sum of this session."""
        with SumLedger.open(witness=self.state.witness) as sums:
            sums.cheated(self._question, dealer)
            write_private(self.state.witness, sums.head)

    def _require(self, sums: SumLedger, members: Iterable[str]) -> None:
        members = list(members)
        sums.require_no_cheater(self._question, members)
        least = self.site.policy.minimum_difference
        sums.require_difference(self._question, members, sums.data(self._data), least, self.allow)

    @property
    def _budget(self) -> Budget | None:
        return Budget.of(self.site.agreement, self.site.policy)

    @property
    def _data(self) -> str:
        if self.session.data is None:  # of a version before there was a ledger
            raise SiteRefusalError(SiteCode.SESSION, "this session began with another version of fedhip; begin anew")
        return self.session.data

    @property
    def _question(self) -> SumRequest:
        session, site = self.session, self.site
        return SumRequest(
            site.name,
            site.roster.keys,
            session.agreement,
            session.roster,
            session.session,
            session.round,
            session.ask,
            session.attempt,
        )


def require_sums(site: SiteFolder, rows: SiteRows, allow: Allowance | None) -> None:
    """Before the site connects: refuse a ledger that is damaged, and what hello would refuse by sums of others."""
    agreement = site.agreement
    nobody = SumRequest(site.name, site.roster.keys, agreement.digest(), site.roster.digest(), b"")
    with SumLedger.open(witness=SiteState(site.path).witness, allow=allow) as sums:
        data = sums.fingerprint(rows, agreement.classes)
        if (budget := Budget.of(agreement, site.policy)) is not None:
            budget.require(sums, nobody, data)
        if agreement.secure_sum and allow is None:
            least = site.policy.minimum_difference
            sums.require_difference(nobody, agreement.sites, data, least, other_agreements=True)
