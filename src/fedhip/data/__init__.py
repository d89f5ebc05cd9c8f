"""Data sets, partitions and feature files."""
