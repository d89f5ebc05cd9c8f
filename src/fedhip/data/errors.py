"""What can go wrong with data, one class for each thing a user can do about it.

Every message names the file or value received and the remedy.
"""

from fedhip.core.errors import FedHiPError
from fedhip.utils.errors import MissingExtraError as MissingExtraError


class DatasetNameError(FedHiPError, ValueError):
    """No data set has this name, and no file or folder lies at this path."""


class DatasetError(FedHiPError, ValueError):
    """The parts of a data set do not fit together, or it lacks what was asked of it."""


class ImagesError(DatasetError):
    """The images are not uint8 pixels of a shape this package understands."""


class WindowError(FedHiPError, ValueError):
    """A window is no range of pixel values, is needed and not known, or would change nothing."""


class DataMissingError(FedHiPError, FileNotFoundError):
    """A file of the data set is not there; the message says how to get it."""


class DataCorruptError(FedHiPError):
    """A file is truncated or is not what its name says."""


class ChecksumError(DataCorruptError):
    """A download is complete, but its checksum is not the published one."""


class UnsafePickleError(DataCorruptError):
    """A pickle holds something other than arrays, lists, dicts, strings, bytes and numbers."""


class CorruptImageError(DataCorruptError):
    """An image cannot be decoded; the message names it."""


class ImageTooLargeError(CorruptImageError):
    """An image has more pixels than Pillow decodes; it is left out like a corrupt one, if asked."""


class DownloadError(FedHiPError, OSError):
    """A download did not finish; what arrived is kept, and the next try goes on from there."""

    status: int | None = None  # the server's answer, where it was an error


class FolderLayoutError(FedHiPError, ValueError):
    """The folder is neither class/image nor client/class/image."""


class SmallClassError(FedHiPError, ValueError):
    """A class has too few images to be both trained on and tested."""


class FeatureFileError(FedHiPError, ValueError):
    """The feature file lacks an array, or one of them has the wrong type, shape or values."""


class PartitionError(FedHiPError, ValueError):
    """No partition has these parameters."""


class ManifestError(FedHiPError, ValueError):
    """The file is not a partition manifest, or a field of it is missing or malformed."""


class ManifestVersionError(ManifestError):
    """The manifest has a schema that this version does not know."""


class ManifestMismatchError(ManifestError):
    """The manifest belongs to other data, or was altered."""


class SkippedImagesWarning(UserWarning):
    """Images that cannot be decoded were left out, as asked; the data set lists them in `skipped`."""
