"""A model as a file: what a client keeps, serves and can check.

`scores = F @ weights + intercept` for features F of the model's backbone, or φ(F) @ weights + intercept where the
features are lifted; `softmax(scores / temperature)` are probabilities. The file (safetensors) holds weights and
intercept and, as JSON in its metadata, all that is needed to use them and to know where they come from: head, classes,
α, β, backbone, lift, and the digests of the statistics they were solved from. A ridge on standardised features has an
intercept as the other heads have; without it, and without a lift, its file is of the schema version that knew neither.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhip.core.affine import AffineModel, masked
from fedhip.core.choice import calibration
from fedhip.core.tensor_file import TensorFile, require_digest
from fedhip.errors import FileError, InputError
from fedhip.features.lifts.lift import TENSORS, Lift
from fedhip.features.reference import BackboneReference

#: The paper's head, and the one of every model that names none.
RIDGE = "ridge"
#: Where a temperature is to be had, for whoever lacks one.
NO_TEMPERATURE = (
    "it is chosen on rows and kept with them: in the run folder, in a federation in a site's and not in the server's, "
    "and with differential privacy for each client's own model alone"
)

_LIFT = "lift_"
_FILE = TensorFile(
    "fedhip.model",
    2,
    "model",
    {"weights": torch.float64, "local_classes": torch.bool},
    optional={"intercept": torch.float64, **{f"{_LIFT}{name}": dtype for name, dtype in TENSORS.items()}},
)


@dataclass(frozen=True, eq=False)
class Model:
    """A linear classifier on a backbone's features.

    Parameters
    ----------
    client : str or None
        Whose it is; None for the global model.
    weights : (m, d) float64
    class_names : d names
    alpha, beta : float or None
        What it was solved with; the global model has no α, and only a ridge has a β.
    temperature : float or None
        Of the probabilities. None in the files of a run, which are functions of the statistics alone, to the last bit:
        the temperature depends on all clients' rows, and the run keeps it in its details.json.
    local_classes : (d,) bool
        The classes the client has training rows of; all, for the global model.
    only_local_classes : bool
        Whether the other classes are left out of its answers.
    backbone : BackboneReference or None
        What makes its features; None if they were given.
    total, own : str
        Digests of the federation's statistics and of the client's part of them.
    bias : (d,) or None
        Added to the scores: the client's prior, if the run has priors. Like the temperature it is not in the file.
    head : str
        What kind of model it is: "ridge", "lda" or "logistic".
    intercept : (d,) float64 or None
        None of a ridge without one. A class that nobody has rows of may have −∞.
    settings : mapping of str to float
        What else the head was solved with: LDA's shrinkage, for one.
    lift : Lift or None
        What the features go through before the weights.
    task : str
        "classification", or "regression" and "multilabel", whose scores are the targets themselves; `class_names` name
        these.
    thresholds : mapping of coverage to q
        Of prediction sets (`fedhip.core.choice.conformal`): a set of coverage "0.9" holds the classes that are no
        farther than q behind the highest score; an interval reaches q to either side, for each target. Like the
        temperature they are not in the file. None for infinity.
    table : mapping or None
        What turns a table into the features (`fedhip.data.tables.Description.to_dict`), where they come from one.
    """

    client: str | None
    weights: Tensor
    class_names: tuple[str, ...]
    alpha: float | None
    beta: float | None
    temperature: float | None
    local_classes: Tensor
    only_local_classes: bool
    backbone: BackboneReference | None
    total: str
    own: str | None = None
    bias: Tensor | None = None
    head: str = RIDGE
    intercept: Tensor | None = None
    settings: Mapping[str, float] = field(default_factory=dict)
    lift: Lift | None = None
    task: str = "classification"
    thresholds: Mapping[str, list[float | None]] = field(default_factory=dict)
    table: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.head != RIDGE and self.intercept is None:
            raise InputError(f"the head is {self.head!r}, which has an intercept; give it")
        if self.intercept is not None and self.intercept.shape != (len(self.class_names),):
            raise InputError(
                f"the intercept has shape {tuple(self.intercept.shape)}, for {len(self.class_names)} class names"
            )
        if self.weights.ndim != 2 or self.weights.shape[1] != len(self.class_names):
            raise InputError(
                f"weights have shape {tuple(self.weights.shape)}, and there are {len(self.class_names)} class names"
            )
        if self.lift is not None and self.lift.width != self.weights.shape[0]:
            raise InputError(f"weights have shape {tuple(self.weights.shape)}, and the lift is {self.lift.width} wide")

    @property
    def feature_dim(self) -> int:
        """m, the width of the features it takes."""
        return int(self.weights.shape[0]) if self.lift is None else self.lift.num_features

    @property
    def affine(self) -> AffineModel:
        """Weights and intercept; a ridge's intercept is 0."""
        d = len(self.class_names)
        return AffineModel(self.weights, torch.zeros(d).to(self.weights) if self.intercept is None else self.intercept)

    @property
    def who(self) -> str:
        """Whose model it is, in words."""
        return "the global model" if self.client is None else f"the model of client {self.client!r}"

    def scores(self, features: NDArray[Any] | Tensor) -> Tensor:
        """(N, d) float64; −∞ for classes that the model leaves out."""
        F = features if isinstance(features, Tensor) else torch.from_numpy(np.require(features, np.float64, "W"))
        if F.ndim != 2 or F.shape[1] != self.feature_dim:
            raise InputError(
                f"features have shape {tuple(F.shape)}, and {self.who} takes (N, {self.feature_dim}); "
                "use the backbone it was made with"
            )
        lifted = F if self.lift is None else self.lift(F)
        found = lifted.to(self.weights) @ self.weights
        # Of NaN the first class would be the answer.
        if not bool(torch.isfinite(found).all()) or not bool(torch.isfinite(F).all()):
            _refuse_rows(F, found, self.who)
        for added in (self.intercept, self.bias):
            if added is not None:
                found += added.to(found)
        return masked(found, self.local_classes if self.only_local_classes else None)

    def probabilities(self, features: NDArray[Any] | Tensor) -> Tensor:
        """(N, d); each row sums to 1."""
        return self.probabilities_of(self.scores(features))

    def probabilities_of(self, scores: Tensor) -> Tensor:
        """The probabilities that follow from scores."""
        if self.task != "classification":
            raise FileError(f"{self.who} is of a {self.task}, which has no probabilities of classes")
        if self.temperature is None:
            raise FileError(f"{self.who} has no temperature: {NO_TEMPERATURE}")
        return calibration.probabilities(scores, self.temperature)

    def digest(self) -> str:
        """SHA-256 of weights and description: the same for the same model, and for no other."""
        sha = hashlib.sha256(_canonical(self._description()).encode())
        for values in self._tensors().values():
            array = values.cpu().contiguous().numpy()
            sha.update(array.astype(array.dtype.newbyteorder("<"), copy=False).data)
        return sha.hexdigest()

    def to_file(self, path: str | PathLike[str]) -> None:
        """Write a safetensors file, whole or not at all."""
        _FILE.write(path, self._tensors(), digest=self.digest(), model=_canonical(self._description()))

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Self:
        """Read what `to_file` wrote, and check version and digest."""
        tensors, metadata = _FILE.read(path)
        try:
            described = json.loads(metadata["model"])
            backbone = described.pop("backbone")
            class_names = tuple(described.pop("class_names"))
            lift = described.pop("lift", None)
            drawn_by = {name.removeprefix(_LIFT): found for name, found in tensors.items() if name.startswith(_LIFT)}
            model = cls(
                weights=tensors["weights"],
                local_classes=tensors["local_classes"],
                intercept=tensors.get("intercept"),
                **described,
                lift=None if lift is None else Lift.restore(lift, drawn_by),
                class_names=class_names,
                backbone=None if backbone is None else BackboneReference(**backbone),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileError(f"{path} does not describe a model ({error}); write it again") from None
        require_digest(path, stored=metadata["digest"], computed=model.digest())
        return model

    def _tensors(self) -> dict[str, Tensor]:
        """What the file holds, in the order of the digest."""
        intercept = {} if self.intercept is None else {"intercept": self.intercept}
        drawn_by = {} if self.lift is None else self.lift.tensors
        return {
            "weights": self.weights,
            "local_classes": self.local_classes,
            **intercept,
            **{f"{_LIFT}{name}": values for name, values in drawn_by.items()},
        }

    def _description(self) -> dict[str, Any]:
        # Newer than files that are kept: only where they say more than those.
        kind = {} if self.head == RIDGE else {"head": self.head, "settings": dict(self.settings)}
        lift = {} if self.lift is None else {"lift": self.lift.description}
        task = {} if self.task == "classification" else {"task": self.task}
        table = {} if self.table is None else {"table": dict(self.table)}
        return {
            "client": self.client,
            "class_names": list(self.class_names),
            "alpha": self.alpha,
            "beta": self.beta,
            "temperature": self.temperature,
            "only_local_classes": self.only_local_classes,
            "backbone": None if self.backbone is None else self.backbone.to_dict(),
            "total": self.total,
            "own": self.own,
            **kind,
            **lift,
            **task,
            **table,
        }


def _refuse_rows(features: Tensor, scores: Tensor, who: str) -> None:
    """Name the first row without an answer."""
    known = torch.isfinite(features)
    if bool(known.all()):
        row = int((~torch.isfinite(scores)).any(dim=1).nonzero()[0])
        raise InputError(f"features of row {row} are so large that {who} has no scores for them; repair the row")
    row, column = (~known).nonzero()[0].tolist()
    raise InputError(
        f"the feature in row {row}, column {column} is {float(features[row, column])}, and {who} takes finite numbers; "
        "repair or drop such rows"
    )


def _canonical(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True)
