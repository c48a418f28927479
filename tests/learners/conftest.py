"""Fixtures of the tests of learners."""

import pytest

from streamsvm import BSGDClassifier


@pytest.fixture(params=[0, 5], ids=["fresh", "learned"])
def model(request):
    model = BSGDClassifier(budget=5, max_features=3, seed=1)
    for i in range(request.param):
        model.learn_one({"a": float(i), "b": -1.0}, i % 2 == 0)
    return model
