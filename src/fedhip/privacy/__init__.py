"""What statistics, sums and models give away of the rows behind them, found by carrying the attacks out."""

from fedhip.privacy.audit import Audit, AuditedSite, Finding, SitesInSum, audit_site

__all__ = ["Audit", "AuditedSite", "Finding", "SitesInSum", "audit_site"]
