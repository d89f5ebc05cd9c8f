"""softmax(Backbone(X) @ P / T) as one ONNX file: from pixels to scores and probabilities, without Python.

The file is made of graphs that are joined end to end: the backbone (through torch.onnx, or the ONNX file that it came
as) and the head, which is small enough to be written node by node. Everything in it is float32. Before it takes its
place it is run in onnxruntime and compared with the model it was made from.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedhip import __version__
from fedhip.data.tables import Description
from fedhip.errors import InputError, MissingExtraError
from fedhip.export.lift_graph import lift_nodes
from fedhip.export.table_graph import CATEGORIES, ML_DOMAIN, ML_OPSET, NUMBERS, TableGraph
from fedhip.features.adapters import HubBackbone, OnnxBackbone, pool_output
from fedhip.features.backbones import NAMED, Backbone, ViTBackbone
from fedhip.features.encoder.vit import IMAGENET_MEAN, IMAGENET_STD
from fedhip.features.images import normalise
from fedhip.heads.model import NO_TEMPERATURE, Model
from fedhip.utils.files import whole_file

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

#: The largest difference that is let through, in scores of size 1 and in probabilities.
TOLERANCE = 1e-4
#: The score of a class that the model leaves out: finite, because −∞ makes NaN of whatever is computed from it later.
LEFT_OUT = -1e30

_OUTPUTS = ["scores", "probabilities"]
_OPSET, _IR_VERSION = 17, 8  # of a head alone: old enough for every runtime in use
_OLDEST_OPSET = 13  # since when Softmax is what torch means by it
_CHECKED_BATCHES = (1, 3)  # neither is the batch that torch traces with, 2
_LARGEST_FILE = 2**31 - 1  # what a protobuf message can hold


@dataclass(frozen=True)
class Export:
    """What was written.

    Parameters
    ----------
    path : Path
    bytes : int
    input_name, input_type, input_shape
        What the file takes, for each image or row; the batch is an axis before, and free.
    other_inputs : tuple of (name, type, shape)
        Where it takes more: of a table's cells, the categories beside the numbers.
    difference : float or None
        The largest found between onnxruntime and this package, in scores (divided by the largest score, where that is
        above 1) and in probabilities; None if it was not looked for.
    compared_with : str
        What it was compared with, or why it was not.
    """

    path: Path
    bytes: int
    input_name: str
    input_type: str
    input_shape: tuple[int, ...]
    difference: float | None
    compared_with: str
    other_inputs: tuple[tuple[str, str, tuple[int, ...]], ...] = ()


def export_onnx(
    model: Model, path: Path, *, head_only: bool = False, weights: Path | None = None, from_table: bool = False
) -> Export:
    """Write images → scores and probabilities as one ONNX file, or features → both with `head_only`.

    The images are uint8 (batch, S, S, 3) in RGB, S the backbone's size; normalisation is in the file, resizing is not,
    nor is the window that brings images of more than 8 bits to 8.
    `weights` are the backbone's, where they do not lie where they were. A file that does not give the model's scores
    in onnxruntime is an `InputError`, and is not left behind.
    With `from_table`, cells of a table → both: missing values and categories are in the file (`export.table_graph`).
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file")
    if model.only_local_classes and not bool(model.local_classes.any()):
        raise InputError(f"{model.who} leaves every class out: there is no answer that a file could give")
    if model.temperature is None and model.task == "classification":
        raise InputError(f"{model.who} has no temperature: {NO_TEMPERATURE}")
    if from_table and model.table is None:
        raise InputError(f"{model.who} was not made from a table; leave --from-table out")
    head_only = head_only or model.table is not None  # what turns a table into features has no backbone
    if head_only and weights is not None:
        raise InputError(f"the head alone has no backbone; leave the weights {weights} out")
    _require("onnx")
    graph = _with_table(model) if from_table else _head_alone(model) if head_only else _with_backbone(model, weights)
    _describe(graph.proto, model, graph.columns)
    with whole_file(path) as temporary:
        _save(graph.proto, temporary)
        found = _checked(temporary, model, graph)
        size = temporary.stat().st_size
    against = "nothing: onnxruntime is not installed" if found is None else graph.compared_with
    (name, kind, shape), *others = graph.inputs
    return Export(path, size, name, kind, shape, found, against, tuple(others))


@dataclass(frozen=True)
class _Graph:
    """A graph, what it takes, and how to try it: random input, as it is fed, and this package's features of it."""

    proto: ModelProto
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    draw: Callable[[int], Any]
    feeds: Callable[[Any], Mapping[str, NDArray[Any]]]
    features_of: Callable[[Any], Tensor]
    compared_with: str
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)


def _head_alone(model: Model) -> _Graph:
    width, generator = model.feature_dim, torch.Generator().manual_seed(0)

    def draw(batch: int) -> Tensor:
        rows = torch.randn(batch, width, generator=generator)
        if model.lift is None:
            return rows
        # Among the rows that the lift was made for: far from all landmarks there is nothing to compare.
        standardization = model.lift.standardization
        scale = torch.where(standardization.used, standardization.scale, 0.0)
        return (standardization.mean + scale * rows).float()

    return _Graph(
        head_graph(model, _OPSET, _IR_VERSION),
        (("features", "float32", (width,)),),
        draw=draw,
        feeds=lambda features: {"features": features.numpy()},
        features_of=lambda features: features,
        compared_with="the model's own scores of random features",
    )


def _with_backbone(model: Model, weights: Path | None) -> _Graph:
    backbone, generator = _loaded(model, weights), torch.Generator().manual_seed(0)
    shape = (backbone.image_size, backbone.image_size, 3)
    return _Graph(
        _joined(backbone_graph(backbone), model),
        (("images", "uint8", shape),),
        draw=lambda batch: torch.randint(0, 256, (batch, *shape), generator=generator, dtype=torch.uint8),
        feeds=lambda images: {"images": images.numpy()},
        features_of=lambda images: backbone(images),
        compared_with=f"{backbone.name} in float32 and the model's own scores, on random images",
    )


def _with_table(model: Model) -> _Graph:
    from onnx import TensorProto

    table, random = TableGraph(Description.from_dict(model.table or {})), np.random.default_rng(0)
    kinds = {NUMBERS: (TensorProto.FLOAT, "float32"), CATEGORIES: (TensorProto.STRING, "string")}
    nodes, constants = table.nodes()
    encoding = _model(
        "table",
        nodes,
        inputs={name: (kinds[name][0], ("batch", len(columns))) for name, columns in table.columns.items()},
        outputs={"features": (TensorProto.FLOAT, ("batch", model.feature_dim))},
        constants=constants,
        opset=_OPSET,
        ir_version=_IR_VERSION,
        others={ML_DOMAIN: ML_OPSET},
    )
    return _Graph(
        _joined(encoding, model),
        tuple((name, kinds[name][1], (len(columns),)) for name, columns in table.columns.items()),
        draw=lambda batch: table.draw(batch, random),
        feeds=table.feeds,
        features_of=lambda frame: torch.from_numpy(table.features(frame)),
        compared_with="the model's own scores of random tables",
        columns=table.columns,
    )


def head_graph(model: Model, opset: int, ir_version: int) -> ModelProto:
    """scores = F @ P + b, probabilities = softmax(scores / T), for features F (batch, m); φ(F) @ P + b with a lift.

    Of real targets the scores are the answer, and there are no probabilities.
    """
    from onnx import TensorProto, helper

    m, d = model.feature_dim, model.weights.shape[1]
    constants = {"head/weights": model.weights.cpu().float().numpy()}
    if model.task == "classification":
        constants["head/temperature"] = np.array(model.temperature, np.float32)
    nodes, product, taken = [], "scores", "features"
    if model.lift is not None:
        lifting, drawn = lift_nodes(model.lift)
        nodes, constants, taken = lifting, constants | drawn, "lift/features"
    if model.only_local_classes:
        product = "head/all_scores"
    added = [part.cpu().double() for part in (model.intercept, model.bias) if part is not None]
    if added:
        # Beside −1e30, scores vanish in float32: a class that nobody has rows of gets it to the last bit.
        constants["head/bias"] = torch.stack(added).sum(dim=0).clamp(min=LEFT_OUT).float().numpy()
        nodes.append(helper.make_node("MatMul", [taken, "head/weights"], ["head/unbiased"]))
        nodes.append(helper.make_node("Add", ["head/unbiased", "head/bias"], [product]))
    else:
        nodes.append(helper.make_node("MatMul", [taken, "head/weights"], [product]))
    if model.only_local_classes:
        constants["head/answers"] = model.local_classes.cpu().numpy()
        constants["head/left_out"] = np.array(LEFT_OUT, np.float32)
        nodes.append(helper.make_node("Where", ["head/answers", "head/all_scores", "head/left_out"], ["scores"]))
    if model.task == "classification":
        nodes.append(helper.make_node("Div", ["scores", "head/temperature"], ["head/logits"]))
        nodes.append(helper.make_node("Softmax", ["head/logits"], ["probabilities"], axis=1))
    return _model(
        "head",
        nodes,
        inputs={"features": (TensorProto.FLOAT, ("batch", m))},
        outputs=dict.fromkeys(_outputs(model), (TensorProto.FLOAT, ("batch", d))),
        constants=constants,
        opset=opset,
        ir_version=ir_version,
    )


def _outputs(model: Model) -> list[str]:
    return _OUTPUTS if model.task == "classification" else _OUTPUTS[:1]


def backbone_graph(backbone: Backbone) -> ModelProto:
    """Features (batch, m) of uint8 `images` (batch, S, S, 3)."""
    if isinstance(backbone, OnnxBackbone):
        return _from_onnx(backbone)
    if isinstance(backbone, ViTBackbone | HubBackbone):
        return _from_torch(backbone)
    raise InputError(f"{backbone.name} cannot be written as ONNX; export the head alone (--head-only)")


class _Features(nn.Module):
    """A backbone as torch.onnx wants it: a module that holds its weights."""

    def __init__(self, backbone: ViTBackbone | HubBackbone) -> None:
        super().__init__()
        self.backbone = backbone
        self.encoder = backbone.encoder if isinstance(backbone, ViTBackbone) else backbone.model

    def forward(self, images: Tensor) -> Tensor:
        """uint8 (B, S, S, 3) → (B, m)."""
        backbone = self.backbone
        if isinstance(backbone, ViTBackbone):
            return backbone(images)
        pixels = normalise(images, backbone.image_size, backbone.mean, backbone.std)
        # without a mask, the noise says only in which order the patches go through; rising, they stay as they are
        order = torch.arange(backbone.patches, dtype=torch.float32).expand(images.shape[0], -1)
        extra = {"noise": order} if backbone.takes_noise else {}
        output = backbone.model(pixel_values=pixels, **extra)
        return pool_output(output.last_hidden_state, backbone.pooling, backbone.name)


def _from_torch(backbone: ViTBackbone | HubBackbone) -> ModelProto:
    _require("onnxscript")
    module = _Features(backbone).eval()
    _require_size(sum(value.numel() for value in module.state_dict().values()) * 4, backbone.name)
    example = torch.zeros(2, backbone.image_size, backbone.image_size, 3, dtype=torch.uint8)
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                module,
                (example,),
                input_names=["images"],
                output_names=["features"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise InputError(
            f"torch cannot write {backbone.name} as ONNX ({reason}); export the head alone (--head-only)"
        ) from error
    if program is None:  # torch answers with None where it wrote a file, which it was not asked for
        raise InputError(f"torch did not write {backbone.name} as ONNX; export the head alone (--head-only)")
    proto: ModelProto = program.model_proto
    batch = proto.graph.input[0].type.tensor_type.shape.dim[0]
    if not batch.dim_param:  # torch would rather give up the free batch than fail
        raise InputError(
            f"torch can write {backbone.name} as ONNX for batches of {batch.dim_value} alone; "
            "export the head alone (--head-only)"
        )
    _forget_sources(proto)
    return proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says of itself: of torchvision, which is not needed, and of its own deprecated calls."""
    registry = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registry.level
    registry.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
            yield
    finally:
        registry.setLevel(level)


def _forget_sources(proto: ModelProto) -> None:
    """Take out where in whose files each node comes from: torch writes it down, and nobody should be sent it."""
    graph = proto.graph
    for part in (graph, *graph.node, *graph.initializer, *graph.input, *graph.output, *graph.value_info):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")


def _from_onnx(backbone: OnnxBackbone) -> ModelProto:
    import onnx
    from onnx import compose

    path = backbone.name.removeprefix("onnx:")
    body = onnx.load(path)
    opset = _opset(body)
    if opset < _OLDEST_OPSET:
        raise InputError(
            f"{backbone.name} is in opset {opset}, and at least {_OLDEST_OPSET} is needed; convert it with "
            "onnx.version_converter, or export the head alone (--head-only)"
        )
    shape = backbone.session.get_inputs()[0].shape
    if isinstance(shape[0], int):
        raise InputError(
            f"{backbone.name} takes batches of {shape[0]} alone, and an exported model takes any; "
            "export the head alone (--head-only)"
        )
    _require_size(body.ByteSize(), backbone.name)
    first = body.graph.output[0].name
    blank = np.zeros((1, 3, backbone.image_size, backbone.image_size), np.float32)
    rank = backbone.session.run([first], {backbone.input: blank})[0].ndim
    body = compose.add_prefix(body, "backbone/")
    pixels = _pixels_graph(backbone.image_size, opset, body.ir_version)
    pooled = _pooling_graph(rank, backbone.pooling, backbone.feature_dim, opset, body.ir_version)
    whole = compose.merge_models(pixels, body, io_map=[("images/normalised", f"backbone/{backbone.input}")])
    return compose.merge_models(whole, pooled, io_map=[(f"backbone/{first}", "pooling/output")], outputs=["features"])


def _pixels_graph(size: int, opset: int, ir_version: int) -> ModelProto:
    """uint8 (batch, S, S, 3) → ImageNet's normalisation (batch, 3, S, S), as `OnnxBackbone` does."""
    from onnx import TensorProto, helper

    mean, std = (255 * np.array(values, np.float32)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
    nodes = [
        helper.make_node("Cast", ["images"], ["images/float"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["images/float"], ["images/planes"], perm=(0, 3, 1, 2)),
        helper.make_node("Sub", ["images/planes", "images/mean"], ["images/centred"]),
        helper.make_node("Div", ["images/centred", "images/std"], ["images/normalised"]),
    ]
    return _model(
        "pixels",
        nodes,
        inputs={"images": (TensorProto.UINT8, ("batch", size, size, 3))},
        outputs={"images/normalised": (TensorProto.FLOAT, ("batch", 3, size, size))},
        constants={"images/mean": mean, "images/std": std},
        opset=opset,
        ir_version=ir_version,
    )


def _pooling_graph(rank: int, pooling: str | None, width: int, opset: int, ir_version: int) -> ModelProto:
    """`pool_output` for an output of this rank: vectors, tokens or maps → features (batch, m)."""
    from onnx import TensorProto, helper

    constants: dict[str, NDArray[Any]] = {}
    nodes = [helper.make_node("Cast", ["pooling/output"], ["pooling/float"], to=TensorProto.FLOAT)]
    if rank == 2:
        nodes.append(helper.make_node("Identity", ["pooling/float"], ["features"]))
    elif rank == 4:
        nodes.append(helper.make_node("GlobalAveragePool", ["pooling/float"], ["pooling/mean"]))
        nodes.append(helper.make_node("Flatten", ["pooling/mean"], ["features"]))
    elif pooling == "mean":
        patches = ["pooling/float", "pooling/one", "pooling/end", "pooling/one"]
        constants |= {"pooling/one": np.array([1]), "pooling/end": np.array([2**31 - 1])}
        nodes.append(helper.make_node("Slice", patches, ["pooling/patches"]))
        if opset < 18:  # where the axes of a mean became an input
            nodes.append(helper.make_node("ReduceMean", ["pooling/patches"], ["features"], axes=[1], keepdims=0))
        else:
            nodes.append(helper.make_node("ReduceMean", ["pooling/patches", "pooling/one"], ["features"], keepdims=0))
    else:
        constants["pooling/first"] = np.array(0)
        nodes.append(helper.make_node("Gather", ["pooling/float", "pooling/first"], ["features"], axis=1))
    return _model(
        "pooling",
        nodes,
        inputs={"pooling/output": (TensorProto.FLOAT, ("batch", *(None,) * (rank - 1)))},
        outputs={"features": (TensorProto.FLOAT, ("batch", width))},
        constants=constants,
        opset=opset,
        ir_version=ir_version,
    )


def _joined(backbone: ModelProto, model: Model) -> ModelProto:
    """The head behind the backbone."""
    from onnx import compose

    head = head_graph(model, _opset(backbone), backbone.ir_version)
    # a name of one graph must not be one of the other, not even where they meet
    backbone = compose.add_prefix(backbone, "body/", rename_inputs=False)
    return compose.merge_models(backbone, head, io_map=[("body/features", "features")], outputs=_outputs(model))


def _loaded(model: Model, weights: Path | None) -> Backbone:
    """The model's backbone, on the CPU, or an error that says why it cannot go into a file."""
    alone = "export the head alone (--head-only)"
    reference = model.backbone
    if reference is None:
        raise InputError(f"{model.who} was made from given features, without a backbone; {alone}")
    if reference.mask_ratio:
        raise InputError(
            f"the backbone of {model.who} hides {reference.mask_ratio:.0%} of the patches by the number of the row: "
            f"its features are no function of the image; {alone}"
        )
    if reference.name not in NAMED and not reference.name.startswith(("hf:", "onnx:")):
        raise InputError(f"the backbone {reference.name!r} of {model.who} is a Python function; {alone}")
    backbone = reference.load(weights=weights, device="cpu")
    if backbone.feature_dim != model.feature_dim:
        raise InputError(
            f"{backbone.name} gives {backbone.feature_dim} features and {model.who} takes {model.feature_dim}; {alone}"
        )
    return backbone


def _model(
    name: str,
    nodes: Sequence[NodeProto],
    *,
    inputs: dict[str, tuple[int, Sequence[str | int | None]]],
    outputs: dict[str, tuple[int, Sequence[str | int | None]]],
    constants: dict[str, NDArray[Any]],
    opset: int,
    ir_version: int,
    others: Mapping[str, int] | None = None,
) -> ModelProto:
    from onnx import helper, numpy_helper

    tensors: list[TensorProto] = [numpy_helper.from_array(value, key) for key, value in constants.items()]
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(key, kind, shape) for key, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(key, kind, shape) for key, (kind, shape) in outputs.items()],
        tensors,
    )
    versions = {"": opset, **(others or {})}
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*entry) for entry in versions.items()], ir_version=ir_version
    )


def _opset(proto: ModelProto) -> int:
    return next(int(entry.version) for entry in proto.opset_import if entry.domain in ("", "ai.onnx"))


def _describe(proto: ModelProto, model: Model, columns: Mapping[str, Sequence[str]]) -> None:
    """What the file is and where it comes from, as metadata; what the model does not have is left out."""
    from onnx import helper

    window = None if model.backbone is None else model.backbone.window
    described = {
        "class_names": json.dumps(model.class_names, ensure_ascii=False),
        "client": model.client,
        "head": model.head,
        "alpha": model.alpha,
        "beta": model.beta,
        "temperature": model.temperature,
        "backbone": None if model.backbone is None else model.backbone.name,
        "lift": None if model.lift is None else json.dumps(model.lift.description),
        "backbone_identity": None if model.backbone is None else model.backbone.identity,
        "window": None if window is None else json.dumps([window.low, window.high]),
        "table": None if model.table is None else json.dumps(model.table, ensure_ascii=False),
        "features": None
        if model.table is None
        else json.dumps(Description.from_dict(model.table).names, ensure_ascii=False),
        **{name: json.dumps(names, ensure_ascii=False) for name, names in columns.items()},
        "statistics": model.total,
        "task": None if model.task == "classification" else model.task,
        "thresholds": json.dumps(model.thresholds) if model.thresholds else None,
        "fedhip_version": __version__,
    }
    helper.set_model_props(proto, {key: str(value) for key, value in described.items() if value is not None})
    proto.producer_name, proto.producer_version = "fedhip", __version__
    proto.graph.name, proto.doc_string = "fedhip", ""


def _save(proto: ModelProto, path: Path) -> None:
    import onnx

    onnx.checker.check_model(proto)
    path.write_bytes(proto.SerializeToString())


def _require_size(size: int, name: str) -> None:
    if size > _LARGEST_FILE:
        raise InputError(
            f"{name} has {size / 1e9:.1f} GB of weights, and one ONNX file holds at most 2.1; "
            "export the head alone (--head-only)"
        )


def _require(package: str) -> None:
    try:
        __import__(package)
    except ImportError as error:
        raise MissingExtraError(f"ONNX files need {package}; pip install 'fedhip[onnx]'") from error


def _checked(path: Path, model: Model, graph: _Graph) -> float | None:
    """The largest difference on random input; an error above `TOLERANCE`, None without onnxruntime."""
    try:
        import onnxruntime
    except ImportError:
        return None
    examples = [graph.draw(batch) for batch in _CHECKED_BATCHES]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors; its warnings are about speed
    try:
        session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
        answers = [session.run(_outputs(model), dict(graph.feeds(example))) for example in examples]
    except Exception as error:  # onnxruntime's errors have no common base
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"onnxruntime cannot run what was written ({reason}); export the head alone (--head-only)"
        ) from error
    worst = max(
        difference(model, graph.features_of(example), *map(torch.from_numpy, found))
        for example, found in zip(examples, answers, strict=True)
    )
    if worst > TOLERANCE:
        raise InputError(
            f"what was written differs by {worst:.1e} from {model.who} (at most {TOLERANCE:.0e} is let through), so it "
            "was not kept; export the head alone (--head-only), or solve with a larger β if that differs too"
        )
    return worst


def difference(model: Model, features: Tensor, scores: Tensor, probabilities: Tensor | None = None) -> float:
    """How far scores and probabilities of a file are from the model's own on these features; ∞ if they are no numbers.

    Scores are compared with the model's, in units of the largest one where that is above 1. Probabilities are compared
    with those that follow from the file's scores: at a low temperature a difference in scores that is let through would
    be counted a thousandfold otherwise.
    """
    expected = model.scores(features)
    answered = expected.isfinite()
    if not scores.isfinite().all() or not bool((scores[~answered] == LEFT_OUT).all()):
        return float("inf")
    scale = max(1.0, float(expected[answered].abs().max()))
    of_scores = float((scores - expected)[answered].abs().max()) / scale
    if probabilities is None:
        return of_scores
    follows = model.probabilities_of(scores.double().masked_fill(~answered, -torch.inf))
    of_probabilities = float((probabilities - follows).abs().max())
    # max() may pass a NaN over
    return float("inf") if math.isnan(of_probabilities) else max(of_scores, of_probabilities)
