"""The window of an adapter: labels and rows are counted when they arrive, not searched for."""

import pickle
import timeit

import numpy as np
import pytest

from adapters import Majority, fitted
from streamsvm.batch import batch_adapter


@pytest.mark.parametrize(
    "ask", [lambda model: model.predict_one({0: 1.0}), lambda model: model.learn_one({0: 1.0}, "x")], ids=["predict", "learn"]
)
def test_checking_the_window_reads_no_rows(ask):
    times = []
    for window in (10, 500_000):
        model = batch_adapter(Majority(), window=window, refit_every=1, max_features=1)
        model._add_rows(np.zeros((window, 1), np.float32), np.zeros(window), np.ones(window))
        times.append(min(timeit.repeat(lambda model=model: ask(model), number=1, repeat=50)))
    assert times[1] < 5.0 * times[0]


@pytest.mark.parametrize("sizes", [[1] * 40, [7] * 5, [25, 3, 12], [10, 10]])
def test_labels_of_the_window_are_counted(majority, sizes):
    model = majority.clone({"refit_every": None})
    labels = np.random.default_rng(0).integers(3, size=sum(sizes)).tolist()
    start = 0
    for size in sizes:
        model.learn_many(np.ones((size, 1)), labels[start : start + size])
        start += size
        last = labels[max(start - 10, 0) : start]
        for one in (model, pickle.loads(pickle.dumps(model))):
            p = one.predict_proba_one({})
            shares = {label: last.count(label) + 1.0 for label in p}
            assert p == pytest.approx({label: share / sum(shares.values()) for label, share in shares.items()})


def test_many_classes_are_listed_quickly(majority):
    n = 3000
    model = fitted(majority.clone({"window": n, "refit_every": None, "max_classes": n}), np.ones((n, 1)), list(range(n)))
    assert model.classes == list(range(n))
    assert min(timeit.repeat(lambda: model.classes, number=1, repeat=5)) < 0.01
