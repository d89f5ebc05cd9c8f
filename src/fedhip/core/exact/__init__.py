"""Sums of whole numbers: the grid that statistics are rounded to, and the units of columns on it."""
