"""Tables: files and frames with a label, an owner for each row, and columns of any kind."""

from fedhip.data.tables.description import Column, Description
from fedhip.data.tables.drafting import DraftDescription, draft
from fedhip.data.tables.encoder import FillSums, encode, fill
from fedhip.data.tables.reader import Table, is_table, read_table
from fedhip.data.tables.rows import TableRows, clients_of_table, load_table, read_described, read_labelled, read_rows
from fedhip.data.tables.text import TextEncoder

__all__ = [
    "Column",
    "Description",
    "DraftDescription",
    "FillSums",
    "Table",
    "TableRows",
    "TextEncoder",
    "clients_of_table",
    "draft",
    "encode",
    "fill",
    "is_table",
    "load_table",
    "read_described",
    "read_labelled",
    "read_rows",
    "read_table",
]
