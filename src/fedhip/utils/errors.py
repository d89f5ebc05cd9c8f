"""The root of all errors."""


class FedHiPError(Exception):
    """Base of every error this package raises on purpose."""


class OpenPlaceError(FedHiPError):
    """A place for secrets belongs to somebody else, or others can look into it."""
