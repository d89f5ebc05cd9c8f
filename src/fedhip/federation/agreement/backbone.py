"""The backbone of an agreement, as its file holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedhip.data.images.window import Window
from fedhip.errors import InputError
from fedhip.features.reference import BackboneReference
from fedhip.federation.agreement.fields import require_known, require_number
from fedhip.federation.agreement.names import shown
from fedhip.federation.errors import SetupError

_BACKBONE = {
    "name": str,
    "identity": str,
    "precision": str,
    "pooling": str,
    "mask_ratio": float,
    "mask_seed": int,
    "window": list,
}
_PRECISIONS = ("float32", "bfloat16", "float16")


def require_reference(name: str, value: Any) -> BackboneReference:
    """The value, if it is the reference of a backbone."""
    if not isinstance(value, BackboneReference):
        raise SetupError(f"{name} is {shown(value)}; give the reference of a backbone")
    return value


def to_table(reference: BackboneReference) -> dict[str, Any]:
    """What a file holds of it; `backbone_reference` reads it."""
    described = reference.to_dict()
    return {key: described[key] for key in _BACKBONE if described.get(key) is not None}


def backbone_reference(content: object) -> BackboneReference:
    """A backbone as `BackboneReference.to_dict` gives it, checked.

    Its path of a weights file is left out: it means nothing on another machine. The identity tells the weights.
    """
    if not isinstance(content, Mapping):
        raise SetupError(f"backbone is {shown(content)}; give a table with its name, identity and precision")
    values = {key: value for key, value in content.items() if value is not None and key != "weights"}
    require_known(values, _BACKBONE, "backbone")
    for key in ("name", "precision"):
        if not values.get(key):
            raise SetupError(f"backbone: {key} is missing; give it")
    for key, value in values.items():
        if key == "mask_ratio":
            values[key] = require_number("backbone: mask_ratio", value)
        elif key == "window":
            values[key] = _window(value)
        elif not isinstance(value, _BACKBONE[key]) or isinstance(value, bool):
            kind = "a whole number" if _BACKBONE[key] is int else "text"
            raise SetupError(f"backbone: {key} is {shown(value)}; give {kind}")
    if values["precision"] not in _PRECISIONS:
        raise SetupError(f"backbone: precision is {shown(values['precision'])}; use one of {', '.join(_PRECISIONS)}")
    return BackboneReference(**{"identity": None, **values})


def _window(value: object) -> Window:
    if not isinstance(value, list | tuple) or len(value) != 2 or any(type(end) not in (int, float) for end in value):
        raise SetupError(f"backbone: window is {shown(value)}; give two numbers, [LOW, HIGH]")
    try:
        return Window(*value)
    except InputError as error:
        raise SetupError(f"backbone: {error}") from None
