"""Tests of models and of merging partitions, without a Spark session: invalid learners and parts are refused."""

import numpy as np
import pytest

from refused import raises
from streamsvm import BSCAClassifier, BSCARegressor
from streamsvm.batch import CSMOClassifier
from streamsvm.files.model_file import serialize_parts
from streamsvm_spark import BudgetedSVMClassificationModel, BudgetedSVMRegressionModel, CascadeSVCModel, RowsError
from streamsvm_spark.parameters import CLASSIFIERS
from streamsvm_spark.parts import PartitionResult, Reservoir, merge_parts

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
LABELS = (X[:, 0] > 0).astype(float)


def make_trained_model(y, kind=BSCAClassifier, names=range(3)):
    model = kind(20, max_features=3)
    for x, label in zip(X.tolist(), y, strict=True):
        model.learn_one(dict(zip(names, x, strict=True)), label)
    return model


@pytest.mark.parametrize(
    "y",
    [np.where(LABELS > 0, 1, -1), LABELS / 2, np.where(LABELS > 0, "a", "b"), LABELS * 1e9],
    ids=["signs", "half", "texts", "large"],
)
def test_labels_that_are_not_class_numbers_are_refused(y):
    raises(
        "the labels of the learner are .* they must be integers from 0",
        BudgetedSVMClassificationModel,
        make_trained_model(y.tolist()),
    )


@pytest.mark.parametrize("names", ["abc", (0, 1, 5)])
def test_feature_names_that_are_not_positions_are_refused(names):
    raises(
        "entries of vectors are numbered from 0", BudgetedSVMClassificationModel, make_trained_model(LABELS.tolist(), names=names)
    )


def test_features_in_another_order_are_accepted():
    model = make_trained_model(LABELS.tolist(), names=(2, 0, 1))
    spark_model = BudgetedSVMClassificationModel(model)
    rows = X[:, [1, 2, 0]]
    expected = [model.predict_one(dict(enumerate(x))) for x in rows.tolist()]
    assert [spark_model.predict(FakeVector(x)) for x in rows] == expected


class FakeVector:
    """Stands for a pyspark.ml vector; it only has ``toArray``."""

    def __init__(self, values):
        self.toArray = lambda: values


@pytest.mark.parametrize(
    ("kind", "learner", "reason"),
    [
        (BudgetedSVMClassificationModel, BSCAClassifier(20), "they must be integers from 0"),
        (BudgetedSVMClassificationModel, BSCARegressor(20), "a BSCARegressor is not a classifier"),
        (BudgetedSVMRegressionModel, make_trained_model(LABELS.tolist()), "a BSCAClassifier is not a regressor"),
        (CascadeSVCModel, make_trained_model(LABELS.tolist()), "a BSCAClassifier is not a CSMOClassifier"),
        (CascadeSVCModel, CSMOClassifier().fit(X, np.where(LABELS > 0, 3, 2)), "with the labels 0 and 1"),
    ],
    ids=str,
)
def test_learners_of_another_kind_are_refused(kind, learner, reason):
    raises(reason, kind, learner)


def make_part(number, name, width, w=1.0):
    model = CLASSIFIERS[name](max_features=width)
    model.learn_many(X[:, :width], LABELS, np.full(40, w))
    reservoir = Reservoir(number)
    reservoir.add(X[:, :width], LABELS, np.full(40, w))
    sample = None if name == "linear" else reservoir.get_sample().to_bytes()
    return PartitionResult(number, 40, 0, serialize_parts({"model": model}, {"kind": "model"}), sample)


@pytest.mark.parametrize("name", ["bsca", "linear"])
def test_partitions_with_different_feature_counts_are_refused(name):
    with pytest.raises(RowsError, match="3 features in partition 1 and 2 in partition 4: all vectors must have"):
        merge_parts([make_part(4, name, 2), make_part(1, name, 3)])


def test_partitions_with_weight_0_are_ignored():
    raises("no rows to learn: .* or have weight 0", merge_parts, [make_part(0, "bsca", 3, w=0.0)], error=RowsError)
    part = make_part(1, "bsca", 3)
    single, merged = merge_parts([part]), merge_parts([make_part(0, "bsca", 3, w=0.0), part])
    assert serialize_parts({"model": merged}, {}) == serialize_parts({"model": single}, {})
