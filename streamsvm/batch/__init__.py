"""Batch kernel machines, which are fitted to all rows at once, and adapters that refit them on a stream.

The estimators follow scikit-learn's conventions. They need the extra ``batch``.
"""

from streamsvm.files.messages import missing_package_error

try:
    import sklearn  # noqa: F401
except ImportError as _error:
    raise missing_package_error("streamsvm.batch", "scikit-learn", "batch", _error) from _error

from streamsvm.batch.adapter.estimators import BatchClassifier, BatchRegressor, batch_adapter
from streamsvm.batch.csmo.estimators import CSMOClassifier, CSMORegressor
from streamsvm.batch.csmo.one_class import CSMOOneClass
from streamsvm.batch.distillation import to_budget
from streamsvm.batch.hierarchical import HierarchicalSVC, HierarchicalSVR
from streamsvm.batch.hss_admm.estimators import HSSADMMClassifier

__all__ = [
    "BatchClassifier",
    "BatchRegressor",
    "CSMOClassifier",
    "CSMOOneClass",
    "CSMORegressor",
    "HSSADMMClassifier",
    "HierarchicalSVC",
    "HierarchicalSVR",
    "batch_adapter",
    "to_budget",
]
