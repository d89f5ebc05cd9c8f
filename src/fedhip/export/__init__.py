"""A model as one ONNX file, from pixels or features to probabilities."""

from fedhip.export.file import LEFT_OUT, Export, export_onnx

__all__ = ["LEFT_OUT", "Export", "export_onnx"]
