"""Starts Spark's daemon of Python workers with imported and compiled code, which the forked workers share."""

import gc
import runpy

import numpy as np

from streamsvm.learners.refit import LineSearch, NormalEquations
from streamsvm_spark import parts
from streamsvm_spark.parameters import CLASSIFIERS


def warm_up():
    X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    y = (X[:, 0] > 0).astype(float)
    for name in ("bsca", "bsgd"):
        model = CLASSIFIERS[name](8, max_features=3)
        model.learn_many(X, y, np.ones(40))
        model = parts.load_learner(parts.serialize_learner(model))
        model.decision_function_many(X), model.predict_proba_many(X)
        step = NormalEquations.from_rows(model, X, y).compute_step(model)
        LineSearch.from_rows(model, step, X, y)


if __name__ == "__main__":
    warm_up()
    gc.freeze()  # otherwise the garbage collection after each task, over all imported objects, takes 0.2 s
    runpy.run_module("pyspark.daemon", run_name="__main__")
