"""What the rows of a site may tell in all: the secret that its noise is made of, and what the ledger says was spent.

A release is known by the ledger's key, the agreement and the very numbers that the noise hides. The noise follows from
these as well. So a release that is asked for again, by a server that was started anew or after the site's folder was
restored from a copy, is the same to the bit, and is paid for once. Rows that have changed, or another agreement, are
another release with noise of its own, and are paid for.

Costs are in ρ, which add (`fedhip.privacy.accounting`). A site pays before its part leaves, whether anybody unmasks the
sum or not. All that was paid for any of the same rows counts, whatever the federation, as far as the ledger knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedhip.federation.agreement.agreement import Agreement
from fedhip.federation.agreement.policy import Policy
from fedhip.federation.agreement.privacy import mechanism_of
from fedhip.federation.site.folder import SiteFolder
from fedhip.federation.site.ledger import Fingerprint, Line, SumLedger, SumRequest
from fedhip.federation.site.state import SiteState
from fedhip.federation.status_codes import SiteCode, SiteRefusalError
from fedhip.federation.sums.vector import Vector, as_bytes

if TYPE_CHECKING:
    from fedhip.privacy.noise import Bytes


def noise_of(site: SiteFolder, state: SiteState, exact: Vector) -> tuple[str, Bytes]:
    """Which release of these numbers it is, and what its noise is made of."""
    from fedhip.privacy.noise import derived

    question = (site.agreement.digest(), site.roster.digest(), site.name)
    with SumLedger.open(witness=state.witness) as sums:
        release = sums.secret("release", *question, as_bytes(exact)).hex()
        return release, derived(sums.secret("noise", release))


@dataclass(frozen=True)
class Budget:
    """What one round costs, and what a site's rows may cost in all."""

    rho: float
    epsilon: float
    delta: float
    most_epsilon: float
    most_delta: float

    @classmethod
    def of(cls, agreement: Agreement, policy: Policy) -> Budget | None:
        """None without differential privacy."""
        if agreement.epsilon is None or agreement.delta is None:
            return None
        rho = mechanism_of(agreement).rho(agreement.layout.size)
        return cls(rho, agreement.epsilon, agreement.delta, policy.max_epsilon, policy.max_delta)

    def require(self, sums: SumLedger, question: SumRequest, data: Fingerprint, release: str | None = None) -> str:
        """Refuse a release that would cost more than is left; in words, what is left after it.

        `release` is not paid for again. Before it is known which it is, what this agreement cost of the same rows is
        taken for it.
        """
        from fedhip.privacy.accounting import epsilon_of, rho_of

        own = (question.site, question.agreement, question.roster, data.digest)

        def is_this(line: Line) -> bool:
            if release is not None:
                return bool(line["release"] == release)
            return (line["site"], line["agreement"], line["roster"], line["data"]) == own

        before = [line for line in sums.spent(question, data) if not is_this(line)]
        spent, most = sum(float(line["rho"]) for line in before), rho_of(self.most_epsilon, self.most_delta)
        limit = f"ε = {self.most_epsilon:g} at δ = {self.most_delta:g} (max_epsilon and max_delta in site.toml)"
        if spent + self.rho > most:
            left = epsilon_of(most - spent, self.most_delta) if spent < most else 0.0
            lines = ", ".join(str(line["line"]) for line in before[:5]) + (", …" if len(before) > 5 else "")
            why = f"{len(before)} earlier (lines {lines} of the ledger of sums) have" if before else "nothing else has"
            raise SiteRefusalError(
                SiteCode.BUDGET,
                f"these rows may tell {limit} in all, of which {why} spent {epsilon_of(spent, self.most_delta):.3g}, "
                f"and this sum would cost ε = {self.epsilon:g} at δ = {self.delta:g}; what is left is ε = {left:.3g}: "
                "nothing was sent. Agree on a smaller epsilon, or raise the limit if you mean to",
            )
        after = epsilon_of(spent + self.rho, self.most_delta)
        return f"with this sum these rows have spent ε = {after:.3g} of {limit}"

    def pay(self, sums: SumLedger, question: SumRequest, data: Fingerprint, release: str) -> str:
        """Write down what leaves, before it does; in words, what is left."""
        left = self.require(sums, question, data, release)
        sums.spend(question, data, release, self.rho, self.epsilon, self.delta)
        return left
