"""What statistics, sums and models give away of the rows behind them, found by carrying the attacks out."""

from fedhip.privacy.audit import Audit, Cohort, Finding, Site, audit_site
from fedhip.privacy.errors import AuditError

__all__ = ["Audit", "AuditError", "Cohort", "Finding", "Site", "audit_site"]
