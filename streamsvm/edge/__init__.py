"""Predictions of saved models with numpy alone: no compiler, no river, no scikit-learn.

`load` reads a file that ``model.save(path)`` wrote, and returns a `Predictor`.
"""

from streamsvm.edge.predictor import Predictor, load, loads
from streamsvm.edge.step import ExportError

__all__ = ["ExportError", "Predictor", "load", "loads"]
