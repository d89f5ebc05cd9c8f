"""FedHiP and its rivals in the same shape, one file each."""

from fedhip.methods.protocol import Evaluation, Head, MethodRun, Protocol

__all__ = ["Evaluation", "Head", "MethodRun", "Protocol"]
