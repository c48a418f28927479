"""Estimators for Spark, which learn the partitions of a DataFrame separately and merge their models into one."""

from streamsvm.files.messages import missing_package_error

try:
    import pyspark  # noqa: F401
except ImportError as _error:
    raise missing_package_error("streamsvm_spark", "pyspark", "spark", _error) from _error

from streamsvm_spark.cascade import CascadeSVC, CascadeSVCModel
from streamsvm_spark.columns import RowsError
from streamsvm_spark.estimators import BudgetedSVMClassifier, BudgetedSVMRegressor
from streamsvm_spark.models import BudgetedSVMClassificationModel, BudgetedSVMRegressionModel
from streamsvm_spark.streaming import StreamLearner

__all__ = [
    "BudgetedSVMClassificationModel",
    "BudgetedSVMClassifier",
    "BudgetedSVMRegressionModel",
    "BudgetedSVMRegressor",
    "CascadeSVC",
    "CascadeSVCModel",
    "RowsError",
    "StreamLearner",
]
