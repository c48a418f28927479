"""Log a checkpoint to MLflow: parameters, scores, the learning curve, and the model, which MLflow can load and serve.

    pip install mlflow pandas
    streamsvm learn rows.csv --label y --checkpoint state
    python examples/track_mlflow.py state --experiment rows
    mlflow ui

MLflow stores this file as the code of the model. The model itself is a data file: nothing is pickled.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import mlflow
import pandas
from mlflow.entities import Metric
from mlflow.pyfunc.model import PythonModel, PythonModelContext

import streamsvm
from streamsvm.stream.checkpoint import read_newest
from streamsvm.stream.rows import find_learner


class StreamSVM(PythonModel):
    """A model of streamsvm behind MLflow's interface: it predicts labels or numbers for a frame."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the model file."""
        self.model = streamsvm.load(context.artifacts["model"])

    def predict(self, context: Any, model_input: pandas.DataFrame, params: Any = None) -> pandas.DataFrame:  # noqa: ARG002
        """Return a frame of predictions, with the probability of the predicted label if the model has probabilities."""
        predictions = pandas.DataFrame({"prediction": list(self.model.predict_many(model_input))}, index=model_input.index)
        if hasattr(self.model, "predict_proba_many"):
            predictions["probability"] = pandas.DataFrame(self.model.predict_proba_many(model_input)).max(axis=1).to_numpy()
        return predictions


def log_checkpoint(checkpoints: Path, name: str = "model") -> Any:
    """Log the newest checkpoint of a folder to a new run, and return MLflow's information about the model."""
    checkpoint = read_newest(checkpoints)
    header, learner = checkpoint.header, find_learner(checkpoint.model)
    with mlflow.start_run() as run, tempfile.TemporaryDirectory() as folder:
        mlflow.log_params({"learner": type(learner).__name__, "source": header["source"], **learner._get_params()})
        curve = header["curve"]
        points = [Metric(f"{curve['metric']} so far", value, 0, rows) for rows, value, *_ in curve["points"] if value is not None]
        mlflow.MlflowClient().log_batch(run.info.run_id, metrics=points)
        mlflow.log_metrics({score["name"]: score["value"] for score in header["scores"] if score.get("value") is not None})
        mlflow.log_metrics({"rows": header["rows"], "bytes": learner.nbytes})
        path = Path(folder, "model.streamsvm")
        streamsvm.save(checkpoint.model, path)
        return mlflow.pyfunc.log_model(
            name=name,
            python_model=__file__,
            artifacts={"model": str(path)},
            pip_requirements=[f"streamsvm=={streamsvm.__version__}", "pandas"],
        )


def main() -> None:
    """Log a checkpoint to an experiment."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path, help="folder of checkpoints")
    parser.add_argument("--experiment", default="streamsvm")
    arguments = parser.parse_args()
    mlflow.set_experiment(arguments.experiment)
    print(log_checkpoint(arguments.checkpoint).model_uri)


if __name__ == "__main__":
    main()
else:  # imported by MLflow, as the code of a model
    mlflow.models.set_model(StreamSVM())
