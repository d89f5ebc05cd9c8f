"""What statistics, sums and models give away of the rows behind them, by trying the attacks; and noise against it."""

from fedhip.privacy.audit import Audit, AuditedSite, Finding, SitesInSum, audit_site

__all__ = ["Audit", "AuditedSite", "Finding", "SitesInSum", "audit_site"]
