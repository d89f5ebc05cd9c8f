"""Columns of text in a table → features, each by the backbone that its description names."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fedhip.data.tables.description import Column
from fedhip.errors import ColumnWarning, InputError
from fedhip.utils.progress import ReportProgress

if TYPE_CHECKING:
    from fedhip.features.text import TextBackbone

#: The backbone of text, where none is named.
DEFAULT_TEXT_BACKBONE = "minilm"


class TextColumns:
    """Makes features of text (`fedhip.data.tables.TextEncoder`); a backbone is loaded when it is needed, and once.

    `backbone` and `pooling` are of columns that name none. `cache` and `kept` as in `fedhip.features.extract`; `run` is
    the run, and its folder, that is noted as a user of what is kept.
    """

    def __init__(
        self,
        backbone: str = DEFAULT_TEXT_BACKBONE,
        *,
        pooling: str | None = None,
        device: str | None = None,
        cache: bool | Path = True,
        kept: list[Path] | None = None,
        run: tuple[str, Path] | None = None,
        report: ReportProgress | None = None,
    ) -> None:
        self._name, self._pooling, self._device = backbone, pooling or "", device
        self._cache, self._kept, self._run, self._report = cache, [] if kept is None else kept, run, report
        self._loaded: dict[tuple[str, str], TextBackbone] = {}

    def describe(self, column: Column) -> Column:
        """The column with its backbone, and the width and the digest of that."""
        name, pooling = (column.backbone, column.pooling) if column.backbone else (self._name, self._pooling)
        found = self._backbone(name, pooling)
        known = replace(column, backbone=name, pooling=pooling, width=found.feature_dim, identity=found.identity)
        for key, said in (("width", column.width), ("identity", column.identity)):
            if said and said != getattr(known, key):
                raise _another(column, key, said, getattr(known, key))
        return known

    def encode(self, column: Column, texts: Sequence[str], where: str) -> NDArray[Any]:
        """Features (N, width) of texts; `where` is what to call them in messages."""
        from fedhip.features.cache import note_run
        from fedhip.features.extraction import cache_folder
        from fedhip.features.text import extract_texts

        self.describe(column)  # refuses a backbone that would make other features
        backbone = self._backbone(column.backbone, column.pooling)
        report = self._report
        features, cut = extract_texts(
            backbone,
            texts,
            cache=cache_folder(self._cache) or False,
            kept=self._kept,
            report=None if report is None else lambda done, total: report("texts", done, total),
        )
        if self._run is not None:
            note_run(self._kept, *self._run)
        if cut:
            are = "is" if cut == 1 else "are"
            warnings.warn(
                f"{where}: {cut:,} of {len(texts):,} texts {are} longer than the {backbone.most_tokens} tokens that "
                f"{backbone.name} takes; what follows them is not read",
                ColumnWarning,
                stacklevel=5,
            )
        return features

    def _backbone(self, name: str, pooling: str) -> TextBackbone:
        from fedhip.features.text import load_text_backbone

        if (name, pooling) not in self._loaded:
            found = load_text_backbone(name, pooling=pooling or None, device=self._device)
            self._loaded[name, pooling] = found
        return self._loaded[name, pooling]


def _another(column: Column, key: str, said: object, found: object) -> InputError:
    shown = [f"{value[:12]}…" if isinstance(value, str) else str(value) for value in (said, found)]
    what = "digest" if key == "identity" else "width"
    return InputError(
        f"column {column.name!r} was described with a {column.backbone} of the {what} {shown[0]}, and the one here has "
        f"{shown[1]}: its features would not fit; install the one it was described with"
    )
