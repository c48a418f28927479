"""Example code of users for type checkers: mypy and pyright check this file in strict mode, and nothing runs it.

Both must find an error in each ignored line; they report ignored lines without an error.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import Any, assert_type

import numpy as np
from river import compose

import streamsvm
import streamsvm_kafka
from streamsvm import (
    BSCAClassifier,
    BSGDClassifier,
    BSGDRegressor,
    Merge,
    OneClassBSGD,
    Removal,
    SVMRegressor,
    edge,
    load,
    save,
    table_model,
)
from streamsvm.batch import BatchClassifier, CSMOClassifier, CSMORegressor, to_budget
from streamsvm.batch.hss import HSSMatrix
from streamsvm.export.c import write_c
from streamsvm.export.c.writer import measure_needs
from streamsvm.export.compare import Comparison, compare_programs
from streamsvm.export.convert import make_program
from streamsvm.export.onnx import write_onnx
from streamsvm.export.quantise import quantise_program
from streamsvm.learners import OnlineLinearSVC
from streamsvm.learners.preprocessing import BoundedScaler, BoundedTargetScaler
from streamsvm.learners.thresholds import TunedThresholdClassifier
from streamsvm.linear import OutOfCoreLinearSVC
from streamsvm.stream import (
    BadRow,
    CheckpointFolder,
    Chunk,
    CSVSource,
    DelayedLabels,
    DelayedLearningLoop,
    DriftWatch,
    FileSink,
    JoinedSource,
    LearningCurve,
    LearningLoop,
    Position,
    PredictionLoop,
    Progress,
    Row,
    ScoreReport,
    Sink,
    Source,
    Table,
    open_source,
)
from streamsvm.stream.tables import TableEncoder, TableModel, TableSchema

X, y = np.zeros((4, 2)), np.array([0, 1, 0, 1])
row: dict[str, float] = {"a": 1.0, "b": 2}


def learn_online() -> None:
    pipeline = BoundedScaler() | BSCAClassifier()
    assert_type(pipeline, compose.Pipeline)
    pipeline.learn_one({"a": 1.0}, True)  # pyright: ignore[reportUnknownMemberType] - of river, without a type

    model = BSGDClassifier(100, kernel="poly", gamma=0.5, learning_rate="floor", overflow="hash", maintenance=Merge("gss"))
    model.learn_one(row, "spam", w=2.0)
    assert_type(model.predict_one(row), bool | int | str | None)
    assert_type(model.predict_proba_one(row), dict[bool | int | str, float])
    model.learn_many(X, y)
    model.note_columns(["a", "b"])
    assert_type(model.predict_many(X), np.ndarray)
    assert_type(model.predict_proba_many(X), np.ndarray)
    assert_type(model.decision_function_many(X, output="last"), np.ndarray)
    assert_type(model.clone({"budget": 50}), BSGDClassifier)
    assert_type(model.n_support, int)
    assert_type(TunedThresholdClassifier(model).predict_one({"a": 1.0}), bool | int | str | None)
    assert_type(OneClassBSGD(nu=0.2, maintenance=Removal("random")).score_one(row), float)
    assert_type(TableEncoder("zip:category") | OnlineLinearSVC(overflow="ignore"), TableModel)

    regressor = SVMRegressor("low")
    regressor.learn_one(row, 0.5)
    assert_type(regressor.predict_one(row), float)
    assert_type(regressor.predict_many(X), np.ndarray)
    assert_type(BoundedTargetScaler(BSGDRegressor()).predict_one({"a": 1.0}), float)


def learn_a_table() -> None:
    model = table_model([{"city": "Oslo", "y": True}], label="y", learner=BSGDClassifier())
    assert_type(model, TableModel)
    assert_type(model.schema, TableSchema | None)
    assert_type(model.score(X, y), float)
    table_model([{"city": "Oslo"}], learner=OneClassBSGD()).score_many([{"city": "Oslo"}])
    streamsvm.table_model("rows.csv", label="y", missing=["NA"], decimall=",")  # type: ignore[call-arg]


def save_and_load() -> None:
    save(BSCAClassifier(), "model.safetensors")
    assert_type(load("model.safetensors", kind=BSCAClassifier), BSCAClassifier)
    assert_type(load("state", kind=compose.Pipeline), compose.Pipeline)
    load("model.safetensors").whatever()
    predictor = edge.load(Path("model.safetensors"))
    assert_type(predictor, edge.Predictor)
    assert_type(predictor.predict_many(X), np.ndarray)


def fit_exactly() -> None:
    machine = CSMOClassifier(C=10.0, kernel="linear", gamma="auto", class_weight="balanced")
    assert_type(machine.fit(X, y), CSMOClassifier)
    assert_type(machine.predict(X), np.ndarray)
    assert_type(machine.gap_, float)
    assert_type(CSMOClassifier(probability=True).fit(X, y).predict_proba(X), np.ndarray)
    assert_type(CSMORegressor().fit(X, y).predict(X), np.ndarray)
    assert_type(OutOfCoreLinearSVC(loss="squared_hinge").fit(X, y), OutOfCoreLinearSVC)
    to_budget(machine, 50, learner="bsgd").save("small.safetensors")
    machine.to_budget(X=X, y=y, loss=0.2).save("small.safetensors")
    assert_type(BatchClassifier(machine, window=1000).predict_many(X), np.ndarray)

    program = make_program(machine)
    write_c(program, "device", "spam", bits=8)
    assert_type(measure_needs(program).fits_16_bits, bool)
    write_onnx(program, "spam.onnx", inputs="double")
    assert_type(compare_programs(program, quantise_program(program, bits=8), [[0.0, 1.0]]), Comparison)


def run_a_loop(codec: streamsvm_kafka.MessageCodec, watch: DriftWatch) -> None:
    assert_type(open_source("rows.csv", label="y"), Source)
    source = streamsvm_kafka.KafkaSource("localhost:9092", "rows", codec, stop_at_end=True)
    with CheckpointFolder("state") as folder, FileSink("predictions.csv") as sink:
        loop = LearningLoop(source, BoundedScaler() | BSCAClassifier(), sink=sink, checkpoints=folder)
        assert_type(loop.run(max_rows=1000), Progress)
        assert_type(loop.curve, LearningCurve)
        assert_type(LearningLoop(source, BSCAClassifier(), ["F1", "ROCAUC"]).progress.scores, tuple[ScoreReport, ...])
        assert_type(loop.learned, int)
    topic: Sink = streamsvm_kafka.KafkaSink("localhost:9092", "predictions")
    assert_type(PredictionLoop(CSVSource("rows.csv", label=None), BSCAClassifier(), topic).run().predicted, int)
    joined = JoinedSource(CSVSource("rows.csv", columns="id:drop"), open_source("labels.csv", missing="NA"), key="key")
    DelayedLearningLoop(joined, BSCAClassifier(), delayed=DelayedLabels(expired="drop"), window=100, drift=watch).stop()
    for each in CSVSource("rows.csv", label="y"):
        if not isinstance(each, BadRow):
            assert_type(each[0], dict[Hashable, Any])


class Zeros(Source):
    """A user-defined source."""

    name = "zeros"
    _n = 0

    def read(self, max_rows: int) -> Chunk:
        self._n += max_rows
        one = Chunk([Row({"a": 0.0}, True)], "zero {}".format)
        assert_type(one.row(0), Row | BadRow)
        assert_type(one.table(["a"]), Table | None)
        return (
            one
            if max_rows == 1
            else Chunk(Table(("a",), [np.zeros(max_rows)], [True] * max_rows), str, passthrough_names=self.passthrough_names)
        )

    @property
    def position(self) -> Position:
        return {"n": self._n}

    def seek(self, position: Position) -> None:
        self._n = position["n"]


def run_your_own(zeros: Zeros) -> None:
    assert_type(LearningLoop(zeros, BSCAClassifier(), passthrough="a").run(9), Progress)
    zeros.read("all")  # type: ignore[arg-type]


def be_wrong() -> None:
    BSGDClassifier(kernel="gauss")  # type: ignore[arg-type]
    BSGDClassifier(learning_rate="optimal")  # type: ignore[arg-type]
    BSGDClassifier(overflow="drop")  # type: ignore[arg-type]
    BSGDClassifier(gamma="auto")  # type: ignore[arg-type]
    BSGDClassifier(bugdet=50)  # type: ignore[call-arg]
    BSGDClassifier(50, 100)  # type: ignore[call-arg]
    BSGDClassifier().decision_function_one({}, output="best")  # type: ignore[arg-type]
    Merge("fast")  # type: ignore[arg-type]
    Removal("oldest")  # type: ignore[arg-type]
    CSMOClassifier(kernel="gauss")  # type: ignore[arg-type]
    OutOfCoreLinearSVC(loss="log")  # type: ignore[arg-type]
    to_budget(None, 5, learner="sgd")  # type: ignore[arg-type]
    HSSMatrix.compress(X, kernel="cosine")  # type: ignore[arg-type]
    CSVSource("rows.csv", dorp="id")  # type: ignore[call-arg]
    DelayedLabels(expired="keep")  # type: ignore[arg-type]
    probability: str = BSGDClassifier().predict_proba_one(row)[True]  # type: ignore[assignment]
    target: str = BSGDRegressor().predict_one(row)  # type: ignore[assignment]
    loaded: str = load("model", kind=BSGDRegressor).predict_one(row)  # type: ignore[assignment]
    learned: int = BSGDClassifier().learn_one(row, True)  # type: ignore[assignment, func-returns-value]
    streamsvm.BSCAClasifier()  # type: ignore[attr-defined]
    streamsvm_kafka.KafkaTopic()  # type: ignore[attr-defined]
    LearningLoop(open_source("rows.csv"), BoundedScaler())  # type: ignore[arg-type]
    assert probability, (target, loaded, learned)
