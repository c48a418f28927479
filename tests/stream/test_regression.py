"""The learning loop with regressors."""

import math

import numpy as np
import pytest
from river import datasets, dummy, metrics, preprocessing, stats

from refused import raises
from streamsvm import BSCARegressor, BSGDRegressor
from streamsvm.learners.preprocessing import BoundedTargetScaler
from streamsvm.stream import IterableSource, LearningLoop, StreamError, open_source


def trump(rows=400):
    return list(datasets.TrumpApproval().take(rows))


def make_model(**options):
    return preprocessing.StandardScaler() | preprocessing.TargetStandardScaler(BSGDRegressor(budget=30, seed=1, **options))


def test_the_windowed_metric_forgets_an_absurd_error():
    rows = trump()
    rows[100] = (rows[100][0], 1e17)
    loop = LearningLoop(IterableSource(rows), dummy.StatisticRegressor(stats.Mean()), metrics.RMSE(), window=50)
    assert loop.run(101).windowed > 1e15
    assert loop.metric.get() > 1e15
    model = dummy.StatisticRegressor(stats.Mean())
    for x, y in rows[:350]:
        model.learn_one(x, y)
    expected = metrics.RMSE()
    for x, y in rows[350:]:
        expected.update(y, model.predict_one(x))
        model.learn_one(x, y)
    assert loop.run().windowed == expected.get()
    assert loop.windowed.get() == expected.get()


def test_a_window_without_error_has_a_metric():
    rows = [({"a": 1.0}, 2.0)] * 30
    progress = LearningLoop(IterableSource(rows), dummy.StatisticRegressor(stats.Mean()), metrics.RMSE(), window=10).run()
    assert progress.windowed == 0.0


def test_targets_may_be_text_and_invalid_ones_are_refused(tmp_path):
    path = tmp_path / "rows.csv"
    texts = ["1.50", "1e1", "+3", "007", "abc", "nan", "1e31", "", "-2"]
    path.write_text("a,y\n" + "".join(f"{i},{text}\n" for i, text in enumerate(texts)))
    learned = []

    class Learns(dummy.StatisticRegressor):
        def learn_one(self, x, y):
            learned.append(y)
            super().learn_one(x, y)

    with open_source(str(path), label="y") as source:
        loop = LearningLoop(source, Learns(stats.Mean()), on_error="skip")
        progress = loop.run()
    assert learned == [1.5, 10.0, 3.0, 7.0, -2.0]
    assert (dict(progress.refused), progress.unlabelled, progress.learned) == ({"label": 3}, 1, 5)
    with open_source(str(path), label="y") as source, pytest.raises(StreamError, match="label 'abc' is not a finite"):
        LearningLoop(source, Learns(stats.Mean())).run()


def test_bounded_targets():
    rows = [({"a": math.sin(i)}, 100.0 + 10.0 * math.sin(i)) for i in range(600)]

    def error(rows, model):
        metric = metrics.MAE()
        for i, (x, y) in enumerate(rows):
            if i >= 500:
                metric.update(y, model.predict_one(x))
            model.learn_one(x, y)
        return metric.get()

    clean = error(rows, BoundedTargetScaler(BSCARegressor(budget=50, seed=0)))
    rows[300] = ({"a": 0.0}, 1e12)
    model = BoundedTargetScaler(BSCARegressor(budget=50, seed=0))
    assert error(rows, model) == pytest.approx(clean, abs=1.0)
    assert clean < 2.0
    assert model.n_bounded == 1
    assert error(rows, preprocessing.TargetStandardScaler(BSCARegressor(budget=50, seed=0))) > 100.0
    raises("deviations must be at least 2", BoundedTargetScaler, BSCARegressor(), deviations=1.0)
    before = model.predict_one({"a": 0.5})
    for y in (math.nan, "text", 1e39, np.inf):
        with pytest.raises(ValueError):  # noqa: PT011 - several kinds of errors
            model.learn_one({"a": 1.0}, y)
    raises("must be finite", model.learn_one, {"a": math.nan}, 1.0)
    assert model.predict_one({"a": 0.5}) == before
