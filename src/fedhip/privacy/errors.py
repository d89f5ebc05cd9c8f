"""What can go wrong with an audit."""

from fedhip.core.errors import FedHiPError


class AuditError(FedHiPError, ValueError):
    """The rows or the cohort that were described cannot be audited."""
