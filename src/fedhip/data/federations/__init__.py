"""Real federations by name: rows with a real owner, from files that their users keep."""

from fedhip.data.federations.named import FEDERATIONS, Rows, load_federation

__all__ = ["FEDERATIONS", "Rows", "load_federation"]
