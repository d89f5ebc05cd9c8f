"""How fast and how large fedhip goes against what people use: one command, ratios measured in one run.

    python -m benchmarks [--quick] [--only NAME ...] [--device cuda] [--out FILE.md FILE.json]

Studies of accuracy and of single parts are scripts of their own in this folder (`python benchmarks/beyond.py`, ...).
"""
