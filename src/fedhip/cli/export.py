"""`fedhip export`: a model of a run as one ONNX file."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from fedhip.utils.text import json_text
from fedhip.utils.words import size

if TYPE_CHECKING:
    from fedhip.export import Export
    from fedhip.heads.model import Model


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "export",
        help="export a model as one ONNX file",
        description="Write the global model of a run, or a client's, with its backbone as one ONNX file, and check it "
        "in onnxruntime. Needs fedhip[onnx].",
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("out", type=Path, metavar="FILE", help="what to write, such as model.onnx")
    parser.add_argument("--client", metavar="ID", help="whose model (default: the global one)")
    parser.add_argument("--head-only", action="store_true", help="without the backbone: from features to probabilities")
    parser.add_argument(
        "--from-table", action="store_true", help="of a table: from its cells, with missing values and categories"
    )
    parser.add_argument("--weights", type=Path, metavar="PATH", help="the backbone's weights, if they were moved")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_argument("--json", action="store_true", help="print JSON instead of words")
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    """Read the model, write and check the file."""
    from fedhip.cli.common.options import require_new
    from fedhip.data.tables import Description
    from fedhip.errors import InputError
    from fedhip.export import export_onnx
    from fedhip.runs import Run
    from fedhip.utils.files import write_text

    # before the work, not after it: a place that the file cannot be written to
    if args.out.suffix != ".onnx":
        raise InputError(f"{args.out}: an ONNX file ends in .onnx, not '{args.out.suffix}'")
    require_new(args.out, args.force)
    model = Run.open(Path(args.run)).model(args.client)
    beside = None if model.table is None else args.out.with_suffix(".columns.toml")
    if beside is not None:
        require_new(beside, args.force)
    export = export_onnx(model, args.out, head_only=args.head_only, weights=args.weights, from_table=args.from_table)
    if export.difference is None:
        warnings.warn(
            f"{export.path} was not checked: onnxruntime is not installed; pip install 'fedhip[onnx]'", stacklevel=1
        )
    if model.table is not None and beside is not None:
        description = Description.from_dict(model.table)
        write_text(beside, description.to_toml())
    if args.json:
        print(json_text(in_json(export, beside)))
        return 0
    print("\n".join(describe(export, model)))
    if model.table is not None:
        if args.from_table:
            print(
                f"'numbers' and 'categories' are columns of the table, as the file's metadata and {beside} name them: "
                "NaN and '' where nothing is known, booleans as 1 and 0, dates as days since 1970-01-01"
            )
            return 0
        few = ", ".join(description.names[:4]) + ", …" * (description.width > 4)
        print(
            f"the features are columns of a table, already encoded ({few}); {beside} says how: missing numbers filled, "
            "dates in days, one for each value of a category, text through its backbone (docs/tables.md)"
        )
    return 0


def in_json(export: Export, columns: Path | None) -> dict[str, object]:
    """The same for machines."""
    return {
        "file": str(export.path),
        "bytes": export.bytes,
        "difference": export.difference,
        "input": {"name": export.input_name, "type": export.input_type, "shape": ["batch", *export.input_shape]},
        "other_inputs": [
            {"name": name, "type": kind, "shape": ["batch", *shape]} for name, kind, shape in export.other_inputs
        ],
        "columns": None if columns is None else str(columns),
    }


def describe(export: Export, model: Model) -> list[str]:
    """What was written, and how to feed it."""
    if export.input_name == "images":
        part = f"{model.who} with its backbone"
    else:
        part = f"{model.who}, {'without a backbone' if export.input_name == 'features' else 'from cells of a table'}"
    checked = "not checked" if export.difference is None else f"differs by {export.difference:.1e} in onnxruntime"
    shape = ", ".join(["batch", *map(str, export.input_shape)])
    others = "".join(f", '{name}': {kind} (batch, {width})" for name, kind, (width,) in export.other_inputs)
    outputs = "'scores' and 'probabilities'" if model.task == "classification" else "'scores', the targets"
    lines = [
        f"{part}, written to {export.path} ({size(export.bytes)}; {checked})",
        f"input '{export.input_name}': {export.input_type} ({shape}){', RGB' if len(export.input_shape) == 3 else ''}"
        f"{others}; "
        f"outputs {outputs}: float32 (batch, {len(model.class_names)})",
    ]
    if export.input_name == "images" and model.backbone is not None and model.backbone.window is not None:
        lines.append(
            f"images of more than 8 bits: bring {model.backbone.window} to 0 to 255 before you resize them, as it was "
            "done with those that the model was made from (docs/export.md)"
        )
    return lines
