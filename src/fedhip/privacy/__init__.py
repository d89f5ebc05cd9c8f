"""What statistics, sums and models give away of the rows behind them, by attacks carried out; and noise against them."""

from fedhip.privacy.audit import Audit, AuditedSite, Finding, SitesInSum, audit_site

__all__ = ["Audit", "AuditedSite", "Finding", "SitesInSum", "audit_site"]
