"""Cells of a table → features as ONNX nodes: missing values filled and marked, a feature for each value of a category.

It takes two matrices, of the columns in their order: `numbers`, float32 with NaN where nothing is known (numbers,
booleans as 1 and 0, dates as days since 1970-01-01), and `categories`, text without spaces around it ("" or one of the
description's words where nothing is known). One that would have no columns is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedhip.data.tables import Description, Table, encode, fill
from fedhip.errors import InputError

if TYPE_CHECKING:
    import polars as pl
    from onnx import NodeProto

NUMBERS, CATEGORIES = "numbers", "categories"
#: Of the operator that gives text a number; old enough for every runtime in use.
ML_DOMAIN, ML_OPSET = "ai.onnx.ml", 2


@dataclass(frozen=True)
class TableGraph:
    """The description of a table, as what a graph is made of."""

    description: Description

    def __post_init__(self) -> None:
        if texts := self.description.texts:
            raise InputError(
                f"column {texts[0].name!r} is text, whose encoder has no graph of its own; export from features "
                "(without --from-table)"
            )

    @property
    def columns(self) -> dict[str, list[str]]:
        """The names of the columns of each matrix."""
        values = [column.name for column in self.description.values]
        others = [column.name for column in self.description.used if not column.is_value]
        return {name: names for name, names in ((NUMBERS, values), (CATEGORIES, others)) if names}

    def nodes(self) -> tuple[list[NodeProto], dict[str, NDArray[Any]]]:
        """From both matrices to `features`, and the constants."""
        from onnx import TensorProto, helper

        nodes: list[NodeProto] = []
        constants: dict[str, NDArray[Any]] = {}
        # Blocks of features beside each other, and where each feature of the description lies among them.
        blocks, places, width = [], np.zeros(self.description.width, np.int64), 0
        if values := self.description.values:
            constants["table/fill"] = np.array(
                [[np.nan if column.fill is None else column.fill for column in values]], np.float32
            )
            nodes.append(helper.make_node("IsNaN", [NUMBERS], ["table/gone"]))
            nodes.append(helper.make_node("Where", ["table/gone", "table/fill", NUMBERS], ["table/filled"]))
            nodes.append(helper.make_node("Cast", ["table/gone"], ["table/marks"], to=TensorProto.FLOAT))
            blocks += ["table/filled", "table/marks"]
            for number, column in enumerate(values):
                begin = self.description.positions[column.name]
                places[begin] = number
                if column.missing:
                    places[begin + 1] = len(values) + number
            width = 2 * len(values)
        words = {form for word in self.description.missing for form in (word, word.lower(), word.upper())} | {""}
        for number, name in enumerate(self.columns.get(CATEGORIES, ())):
            column = next(column for column in self.description.used if column.name == name)
            other = len(column.values)
            codes = dict.fromkeys(words, other + 1 if column.missing else other)
            codes |= {value: code for code, value in enumerate(column.values) if value not in words}
            at = f"table/{number}"
            constants |= {f"{at}/column": np.array([number]), f"{at}/codes": np.arange(len(column.features))[None]}
            nodes.append(helper.make_node("Gather", [CATEGORIES, f"{at}/column"], [f"{at}/cells"], axis=1))
            nodes.append(
                helper.make_node(
                    "LabelEncoder", [f"{at}/cells"], [f"{at}/code"], domain=ML_DOMAIN,
                    keys_strings=list(codes), values_int64s=list(codes.values()), default_int64=other,
                )
            )  # fmt: skip
            nodes.append(helper.make_node("Equal", [f"{at}/code", f"{at}/codes"], [f"{at}/is"]))
            nodes.append(helper.make_node("Cast", [f"{at}/is"], [f"{at}/features"], to=TensorProto.FLOAT))
            blocks.append(f"{at}/features")
            begin = self.description.positions[name]
            places[begin : begin + len(column.features)] = width + np.arange(len(column.features))
            width += len(column.features)
        constants["table/places"] = places
        nodes.append(helper.make_node("Concat", blocks, ["table/blocks"], axis=1))
        nodes.append(helper.make_node("Gather", ["table/blocks", "table/places"], ["features"], axis=1))
        return nodes, constants

    def draw(self, rows: int, random: np.random.Generator) -> pl.DataFrame:
        """A table to try the graph on: values that are known, unknown and missing."""
        import polars as pl

        frame = {}
        for column in self.description.used:
            gone = random.random(rows) < 0.2
            if column.is_value:
                middle = column.fill or 0.0
                low = middle - 1 if column.low is None else column.low
                high = middle + 1 if column.high is None else column.high
                drawn = np.rint(random.uniform(low, high, rows)) if column.kind == "date" else (
                    random.integers(0, 2, rows) if column.kind == "boolean" else random.uniform(low, high, rows)
                )  # fmt: skip
                cells: list[Any] = [None if no else float(cell) for cell, no in zip(drawn, gone, strict=True)]
                series = pl.Series(column.name, cells, dtype=pl.Float64)
                frame[column.name] = series.cast(pl.Int32).cast(pl.Date) if column.kind == "date" else series
            else:
                known = [*column.values, "(nobody has this)"]
                texts = [None if no else known[random.integers(len(known))] for no in gone]
                frame[column.name] = pl.Series(column.name, texts, dtype=pl.String)
        return pl.DataFrame(frame)

    def feeds(self, frame: pl.DataFrame) -> Mapping[str, NDArray[Any]]:
        """What the graph takes of such a table."""
        import polars as pl

        found: dict[str, NDArray[Any]] = {}
        for name, columns in self.columns.items():
            part = frame.select(columns)
            if name == NUMBERS:
                days = part.with_columns(pl.col(pl.Date).cast(pl.Int32))
                found[name] = days.cast(pl.Float32).fill_null(float("nan")).to_numpy()
            else:
                found[name] = part.fill_null("").to_numpy().astype(object)
        return found

    def features(self, frame: pl.DataFrame) -> NDArray[np.float64]:
        """What this package makes of such a table."""
        encoded = encode(Table("a table to try", frame), self.description)
        return fill(encoded.matrix, self.description, "a table to try")
