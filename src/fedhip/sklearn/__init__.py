"""FedHiP as scikit-learn estimators: a classifier and a regressor; `groups` says whose each row is."""

from fedhip.errors import MissingExtraError

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise MissingExtraError("fedhip.sklearn needs scikit-learn; pip install 'fedhip[sklearn]'") from error

from fedhip.sklearn.classifier import FedHiPClassifier
from fedhip.sklearn.regressor import FedHiPRegressor

__all__ = ["FedHiPClassifier", "FedHiPRegressor"]
