"""What can go wrong between images and features, one class for each thing a user can do about it."""

from fedhip.core.errors import FedHiPError


class ConfigError(FedHiPError, ValueError):
    """The sizes of an encoder or of a training recipe do not fit together."""


class PoolingError(FedHiPError, ValueError):
    """The pooling specification cannot be read, or names a layer the encoder does not have."""


class WeightsError(FedHiPError):
    """The weights are missing, unreadable, or of another architecture."""


class BackboneError(FedHiPError, ValueError):
    """No backbone has this name, or what it returns are not features."""


class PoolError(FedHiPError):
    """A pool of images for pre-training is missing, empty or unreadable."""


class CheckpointError(FedHiPError):
    """The training checkpoint does not belong to this run, or cannot be read."""


class CacheWarning(UserWarning):
    """The cache cannot be used; features are computed and not kept."""


class DivergedError(FedHiPError, ArithmeticError):
    """The training loss is no longer a finite number."""
