"""What can go wrong, one class for each thing a user can do about it.

Every message names the value received and the remedy. `FedHiPError` catches them all; those that reject an
argument are also a `ValueError`, as Python's users expect.
"""

from fedhip.errors import FedHiPError


class MetricsError(FedHiPError, ValueError):
    """There are no rows to measure on, or what was predicted for them are no numbers."""
