"""Saved adapters continue exactly where they were saved, and corrupt ones are refused."""

import pickle

import numpy as np
import pytest
from river import metrics, preprocessing
from sklearn.svm import SVC

from adapters import ROWS, Majority, N, adapter, fitted
from problems import learned_by
from refused import refused
from saved import dumps
from streamsvm.batch import BatchClassifier, CSMORegressor, batch_adapter
from streamsvm.stream import CheckpointError, CheckpointFolder, IterableSource, LearningLoop, load


@pytest.mark.parametrize("kind", ["classifier", "regressor", "pipeline"])
def test_resumed_runs_end_with_the_same_bytes(tmp_path, kind):
    def run(folder, *stops, n=N - 7):
        for stop in (*stops, None):
            model = {
                "classifier": adapter,
                "pipeline": lambda: preprocessing.StandardScaler() | adapter(),
                "regressor": lambda: batch_adapter(CSMORegressor(), window=30, refit_every=15),
            }[kind]()
            rows = [(x, float(y)) for x, y in ROWS[:n]] if kind == "regressor" else ROWS[:n]
            metric = metrics.MAE() if kind == "regressor" else metrics.LogLoss()
            with CheckpointFolder(tmp_path / folder) as checkpoints:
                if kind == "regressor":  # the learning loop scores classifiers: this does the same for regressors
                    checkpoint = checkpoints.newest()
                    model, start = (model, 0) if checkpoint is None else (checkpoint.model, checkpoint.header["rows"])
                    for x, y in rows[start:stop]:
                        model.predict_one(x)
                        model.learn_one(x, y)
                    checkpoints.save(model, metric, rows=len(rows[:stop]), position={})
                else:
                    loop = LearningLoop(IterableSource(rows), model, metric, checkpoints=checkpoints)
                    loop.run(None if stop is None else stop - loop.rows)
        return max((tmp_path / folder).glob("*.ckpt")).read_bytes()

    assert run("whole") == run("parts", 7, 20, 33)
    model = load(tmp_path / "parts")
    assert model.predict_one(ROWS[0][0]) == load(tmp_path / "whole").predict_one(ROWS[0][0])


def test_foreign_models_need_trust(tmp_path):
    model = batch_adapter(SVC(), refit_every=20)
    learned_by(model, ROWS[:20])
    with CheckpointFolder(tmp_path / "state") as folder, pytest.raises(CheckpointError, match="SVC.*trusted=True"):
        folder.save(model, None, rows=1, position={})
    with CheckpointFolder(tmp_path / "trusted", trusted=True) as folder:
        path = folder.save(model, None, rows=1, position={})
    refused("trusted=True", load, path, error=CheckpointError)
    assert load(path, trusted=True).predict_one(ROWS[0][0]) == model.predict_one(ROWS[0][0])


@pytest.mark.parametrize(
    ("match", "change"),
    [
        ("a name|feature names", lambda s: {**s, "features": ["a"] * 300}),
        ("of 9 features does not match 2 feature names", lambda s: {**s, "fit": (s["fit"][0], np.zeros(9), *s["fit"][2:])}),
        ("features does not match", lambda s: {**s, "fit": (*s["fit"][:2], np.ones(9), *s["fit"][3:])}),
    ],
)
def test_corrupt_adapters_are_refused(match, change):
    model = fitted(adapter(), ROWS[:30])
    fresh = BatchClassifier.__new__(BatchClassifier)
    fresh.__setstate__(model.__getstate__())
    assert dumps(fresh) == dumps(model)
    refused(match, BatchClassifier.__new__(BatchClassifier).__setstate__, change(model.__getstate__()))


def test_a_model_without_n_features_in_is_restored():
    model = fitted(batch_adapter(Majority(), refit_every=None), ROWS[:20])
    assert not hasattr(model.fitted_, "n_features_in_")
    copies = model.clone(include_attributes=True), pickle.loads(pickle.dumps(model))
    assert all(copy.predict_one({}) == model.predict_one({}) for copy in copies)
