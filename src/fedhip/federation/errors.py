"""What can go wrong in a federation: the classes that somebody catches by name; the sentence does the rest.

Every message says what, which site or file, and the remedy. An error raised at a site stays in that site's log: what
the server is told is a code (`SiteRefusalError`).
"""

from fedhip.errors import FedHiPError


class FederationError(FedHiPError):
    """Base of every error of a federation."""


class SetupError(FederationError, ValueError):
    """A file, folder, key, name or setting is missing, malformed, or does not fit the others; nothing was computed."""


class PolicyError(SetupError):
    """The site's policy (site.toml) is malformed, or forbids what the agreement asks."""


class EngineError(FederationError):
    """The engine's processes or its network: not installed, not started, not reached, or ended with an error."""


class RoundError(FederationError):
    """The round did not succeed; the message says where it stopped and what to do."""


class MessageError(FederationError, ValueError):
    """A message is malformed, oversized, truncated, or has a field of the wrong kind or shape."""
