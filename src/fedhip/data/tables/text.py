"""Columns of text: what is asked of whatever makes features of them (`fedhip.features.text_columns` does)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedhip.data.tables.description import Column, Description
from fedhip.errors import InputError


class TextEncoder(Protocol):
    """What makes features of text."""

    def describe(self, column: Column) -> Column:
        """The column with its backbone, and the width and the digest of that."""

    def encode(self, column: Column, texts: Sequence[str], where: str) -> NDArray[Any]:
        """Features (N, width) of texts; `where` is what to call them in messages."""


class Unread:
    """In place of an encoder, where features are not looked at: each text is 0."""

    def describe(self, column: Column) -> Column:
        """With a width of one."""
        return replace(column, backbone=column.backbone or "none", width=column.width or 1)

    def encode(self, column: Column, texts: Sequence[str], where: str) -> NDArray[Any]:
        """Zeros."""
        return np.zeros((len(texts), column.width))


def with_backbones(description: Description, texts: TextEncoder | None) -> Description:
    """The description with width and digest of every column of text, looked up where it does not say them."""
    open_ones = [column for column in description.texts if not (column.width and column.identity)]
    return description.with_columns(require_encoder(column, texts).describe(column) for column in open_ones)


def require_encoder(column: Column, texts: TextEncoder | None) -> TextEncoder:
    """The encoder, or an error."""
    if texts is None:
        raise InputError(f"column {column.name!r} is text, and nothing is given that makes features of it")
    return texts
