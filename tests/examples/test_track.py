"""Test of examples/track_mlflow.py: MLflow logs a checkpoint as a run, and loads the model."""

import os
import subprocess
import sys
from pathlib import Path

import pandas
import pytest
from river import datasets

import streamsvm

EXAMPLE = Path(__file__).parents[2] / "examples" / "track_mlflow.py"


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # warnings of MLflow and its dependencies
def test_checkpoint_is_logged_and_loaded(tmp_path, monkeypatch, call):
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow-skinny, alembic and sqlalchemy (extra examples)")
    monkeypatch.chdir(tmp_path)
    table = pandas.read_csv(datasets.Phishing().path).replace({"is_phishing": {0: "no", 1: "yes"}})
    table.to_csv("rows.csv", index=False)
    options = "--learner", "bsgd,budget=20", "--metric", "Accuracy,LogLoss,ConfusionMatrix", "--quiet"
    call("learn", "rows.csv", "--label", "is_phishing", "--checkpoint", "state", *options)
    tracking_uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    environment = {**os.environ, "MLFLOW_TRACKING_URI": tracking_uri, "MLFLOW_DISABLE_TELEMETRY": "true"}
    done = subprocess.run(
        [sys.executable, EXAMPLE, "state", "--experiment", "pages"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow.set_tracking_uri(tracking_uri)
    (run,) = mlflow.search_runs(experiment_names=["pages"], output_format="list")
    assert run.data.params["budget"] == "20"
    assert run.data.params["learner"] == "BSGDClassifier"
    assert (run.data.metrics["rows"], run.data.metrics["Accuracy"] > 0.8) == (1250, True)
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "Accuracy so far")
    assert history[-1].step > history[0].step
    rows, model = table.drop(columns="is_phishing")[:50], streamsvm.load("state")
    predicted = mlflow.pyfunc.load_model(done.stdout.split()[-1]).predict(rows)
    assert list(predicted["prediction"]) == list(model.predict_many(rows))
    assert predicted["probability"].between(0.5, 1.0).all()
