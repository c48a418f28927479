"""Support vector machines of very many rows, by dual descent on a forest of compositional kernels."""

from __future__ import annotations

from dataclasses import dataclass

from streamsvm.batch.hierarchical.machine import HierarchicalMachine
from streamsvm.batch.kernel_machine import KernelClassifier, KernelRegressor

__all__ = ["HierarchicalSVC", "HierarchicalSVR"]


@dataclass(eq=False, repr=False, kw_only=True)
class HierarchicalSVC(KernelClassifier, HierarchicalMachine):
    """A support vector classifier."""


@dataclass(eq=False, repr=False, kw_only=True)
class HierarchicalSVR(KernelRegressor, HierarchicalMachine):
    """Support vector regression."""
