"""The root of all errors."""


class FedHiPError(Exception):
    """Base of every error this package raises on purpose."""


class OpenPlaceError(FedHiPError):
    """A place for secrets belongs to somebody else, or others can look into it."""


class MissingExtraError(FedHiPError, ImportError):
    """An optional package is needed; the message names the extra that brings it."""
