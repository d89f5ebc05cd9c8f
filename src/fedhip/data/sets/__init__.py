"""Data sets by name or by path."""
