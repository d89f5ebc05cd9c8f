"""What can go wrong in a federation, one class for each thing a user can do about it.

Every message says what, which site or file, and the remedy. An error raised at a site stays in that site's log: what
the server is told is a code.
"""

from fedhip.errors import FedHiPError


class FederationError(FedHiPError):
    """Base of every error of a federation."""


# Files and settings: raised before anything is computed or sent.


class AgreementError(FederationError, ValueError):
    """The agreement (federation.toml) is missing or malformed, or its settings do not fit together."""


class AgreementVersionError(AgreementError):
    """The agreement has a schema that this version does not know."""


class SiteNameError(FederationError, ValueError):
    """No site has this name, or it is not a name that a site can have."""


class ClassNameError(FederationError, ValueError):
    """A class of the site's data is none of the agreed ones; the message names it."""


class PolicyError(FederationError, ValueError):
    """The site's policy (site.toml) is malformed, or forbids what the agreement asks."""


class RosterError(FederationError, ValueError):
    """The roster (roster.json) is missing, malformed, or does not belong to the agreement."""


class CredentialError(FederationError, ValueError):
    """A key or a certificate is missing, malformed, out of date or another than the one expected."""


class OpenKeyError(CredentialError):
    """Other users of the machine can read a private key."""


class ParcelError(FederationError, ValueError):
    """A parcel or a reply is malformed, altered, of another format, or not for this site."""


class FingerprintError(FederationError, ValueError):
    """The fingerprint that another site tells is not the one here, or none was told."""


class SiteFolderError(FederationError):
    """A site's folder lacks a file, or its files do not belong together."""


class FederationExistsError(FederationError, FileExistsError):
    """There is something where the federation, or a key, is to be written."""


# The engine: processes and the network.


class EngineError(FederationError):
    """A process of the engine did not start, or ended with an error."""


class EngineMissingError(EngineError, ImportError):
    """The engine is not installed; the message names the extra that brings it."""


class PortError(EngineError, OSError):
    """A port is taken, or cannot be listened on."""


class NotServingError(EngineError):
    """No server of this federation runs here, or it cannot be reached."""


# The round.


class RoundError(FederationError):
    """The round did not succeed; the message says where it stopped and what to do."""


class QuorumError(RoundError):
    """Too few sites were left to go on."""


class MessageError(FederationError, ValueError):
    """A message is malformed, oversized, truncated, or has a field of the wrong kind or shape."""


class SiteDataError(FederationError, ValueError):
    """The site's rows do not fit the agreement: width, classes, size of the features, number of rows."""


class EncoderError(FederationError):
    """The encoder that was received is not the agreed one, or did not arrive whole."""


class CheckpointError(FederationError):
    """The server's checkpoint is damaged, or belongs to another federation."""
