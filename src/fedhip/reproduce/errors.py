"""What can go wrong when the paper is reproduced."""

from fedhip.core.errors import FedHiPError


class ReproduceError(FedHiPError, ValueError):
    """A study, method, protocol or setting that there is not; the message names the nearest that there is."""
