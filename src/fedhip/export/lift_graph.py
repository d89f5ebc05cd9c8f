"""A lift as ONNX nodes: features (batch, m) → lift/features (batch, w), what the seed draws as constants."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedhip.features.lifts.kinds import LANDMARKS
from fedhip.features.lifts.lift import Lift

if TYPE_CHECKING:
    from onnx import NodeProto

Parts = tuple[list["NodeProto"], dict[str, NDArray[Any]]]


def lift_nodes(lift: Lift) -> Parts:
    """Nodes from `features` to `lift/features`, both float32, and their constants."""
    nodes, constants = _landmark_nodes(lift) if lift.kind in LANDMARKS else _projection_nodes(lift)
    if lift.keeps:
        from onnx import TensorProto, helper

        nodes[-1].output[0] = "lift/drawn"
        nodes += [
            helper.make_node("Cast", ["lift/units"], ["lift/kept"], to=TensorProto.FLOAT),
            helper.make_node("Concat", ["lift/drawn", "lift/kept"], ["lift/features"], axis=1),
        ]
    return nodes, constants


def _projection_nodes(lift: Lift) -> Parts:
    """√(2/w) max(0, u Ω + b) √(2/w) cos(u Ω/σ + b), or u Ω."""
    from onnx import helper

    Omega, b = lift.projection
    sigma = lift.bandwidth if lift.kind == "fourier" else 1.0
    nodes, constants = _unit_nodes(lift, "features", np.float32)
    constants |= {
        "lift/projection": _array(Omega / sigma, np.float32),
        "lift/offset": _array(b, np.float32),
        "lift/size": np.array(math.sqrt(2.0 / lift.drawn), np.float32),
    }
    if lift.kind == "project":
        constants = {name: value for name, value in constants.items() if name not in ("lift/offset", "lift/size")}
        return [*nodes, helper.make_node("MatMul", ["lift/units", "lift/projection"], ["lift/features"])], constants
    nodes += [
        helper.make_node("MatMul", ["lift/units", "lift/projection"], ["lift/projected"]),
        helper.make_node("Add", ["lift/projected", "lift/offset"], ["lift/moved"]),
        helper.make_node("Relu" if lift.kind == "relu" else "Cos", ["lift/moved"], ["lift/bent"]),
        helper.make_node("Mul", ["lift/bent", "lift/size"], ["lift/features"]),
    ]
    return nodes, constants


def _landmark_nodes(lift: Lift) -> Parts:
    """exp(−(‖u‖² + ‖z‖² − 2 u·z)/2σ²) (k(Z, Z) + εI)^-½, in float64: the root multiplies errors a thousandfold."""
    from onnx import TensorProto, helper

    Z, whitening = lift.landmarks
    nodes, constants = _unit_nodes(lift, "lift/double", np.float64)
    constants |= {
        "lift/landmarks": _array(-2.0 * Z.mT, np.float64),
        "lift/norms": _array(Z.square().sum(dim=1), np.float64),
        "lift/width": np.array(-2.0 * lift.bandwidth**2),
        "lift/whitening": _array(whitening, np.float64),
        "lift/features_axis": np.array([1]),
    }
    nodes = [
        helper.make_node("Cast", ["features"], ["lift/double"], to=TensorProto.DOUBLE),
        *nodes,
        helper.make_node("Mul", ["lift/units", "lift/units"], ["lift/squares"]),
        helper.make_node("ReduceSum", ["lift/squares", "lift/features_axis"], ["lift/own_norms"], keepdims=1),
        helper.make_node("MatMul", ["lift/units", "lift/landmarks"], ["lift/products"]),
        helper.make_node("Add", ["lift/products", "lift/norms"], ["lift/partial"]),
        helper.make_node("Add", ["lift/partial", "lift/own_norms"], ["lift/distances"]),
        helper.make_node("Div", ["lift/distances", "lift/width"], ["lift/exponents"]),
        helper.make_node("Exp", ["lift/exponents"], ["lift/kernel"]),
        helper.make_node("MatMul", ["lift/kernel", "lift/whitening"], ["lift/whitened"]),
        helper.make_node("Cast", ["lift/whitened"], ["lift/features"], to=TensorProto.FLOAT),
    ]
    return nodes, constants


def _unit_nodes(lift: Lift, name: str, dtype: type[np.floating[Any]]) -> Parts:
    """u: standardised features, divided by √m."""
    from onnx import helper

    constants = {
        "lift/mean": _array(lift.standardization.mean, dtype),
        "lift/scale": _array(lift.standardization.scale * lift.root_width, dtype),
    }
    nodes = [
        helper.make_node("Sub", [name, "lift/mean"], ["lift/centred"]),
        helper.make_node("Div", ["lift/centred", "lift/scale"], ["lift/units"]),
    ]
    return nodes, constants


def _array(values: Tensor, dtype: type[np.floating[Any]]) -> NDArray[Any]:
    return values.cpu().contiguous().numpy().astype(dtype)
