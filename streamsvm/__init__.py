"""Kernel support vector machines that learn endless streams inside a fixed number of bytes."""

from streamsvm.budget import Merge, Projection, Removal
from streamsvm.learners.bsgd import BSGDClassifier

__all__ = ["BSGDClassifier", "Merge", "Projection", "Removal"]
__version__ = "0.1.0"
