"""Spark frames for tests, and `LocalFrame`, which imitates one in a single process, with tasks and batches in random order."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql.types import DoubleType, StructField, StructType

from streamsvm import BSCAClassifier
from streamsvm.files.model_file import serialize_parts
from streamsvm_spark import cascade_tasks, columns


def make_vector_frame(spark, X, y, partitions=4, **columns):
    """Return a frame of vectors and labels with equally large partitions, in row order."""
    column_names = ["features", "label", *columns]
    rows = [(Vectors.dense(x.tolist()), *map(float, values)) for x, *values in zip(X, y, *columns.values(), strict=True)]
    # Without a schema, Spark would run a job to infer it.
    schema = StructType([StructField(name, DoubleType() if i else VectorUDT()) for i, name in enumerate(column_names)])
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, partitions), schema)


def stack_vectors(column):
    """Convert a pandas column of vectors to an array [n, features]."""
    return np.stack(column.map(lambda vector: vector.toArray()))


def serialize_model(model):
    return serialize_parts({"model": model}, {})


def make_model():
    """Return a small untrained classifier."""
    return BSCAClassifier(budget=20, seed=0)


def make_array_frame(spark, X, y, kind="long", partitions=1, **columns):
    """Return a frame of float arrays, with labels of the SQL type ``kind``."""
    features = pa.array([None if x is None else list(map(float, x)) for x in X])
    frame = spark.createDataFrame(pa.table({"features": features, "label": pa.array(y), **columns}))
    return frame.selectExpr("features", f"cast(label as {kind}) label", *columns).coalesce(partitions)


def run_plain_loop(model, X, y, metric):
    """Predict and learn row by row. Return the bytes of the model, and the metric's value."""
    for x, label in zip(X.tolist(), y.tolist(), strict=True):
        row = dict(enumerate(x))
        predicted = model.predict_one(row)
        if predicted is not None:
            metric.update(label, predicted)
        model.learn_one(row, label)
    return serialize_model(model), metric.get()


class LocalFrame:
    """Imitates the Spark frame of a cascade. Partitions are lists of batches; tasks run in random order."""

    sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(master="none"))  # noqa: N815 - as Spark names it

    def __init__(self, partitions, rng, again=None):
        self.partitions, self.rng = partitions, rng
        self.again = again  # optional function that changes the partitions at each reading

    @property
    def read(self):
        return self.partitions if self.again is None else self.again(self.partitions)

    def mapInArrow(self, task, schema):
        partitions, mapped = self.read, {}
        for number in self.rng.permutation(len(partitions)):
            context = SimpleNamespace(get=lambda number=number: SimpleNamespace(partitionId=lambda: int(number)))
            with pytest.MonkeyPatch.context() as patch:
                for module in (cascade_tasks, columns):
                    patch.setattr(module, "TaskContext", context)
                mapped[number] = list(task(iter(partitions[number])))
        return LocalFrame([mapped[number] for number in range(len(partitions))], self.rng)

    def repartitionById(self, n, target):
        """Move each row to partition ``target(part)`` modulo ``n``, in pieces that arrive in random order."""
        pieces = [[] for _ in range(n)]
        for batch in (batch for batches in self.partitions for batch in batches):
            targets = np.array([0 if part is None else target(part) for part in batch.column("part").to_pylist()], int) % n
            for number in range(n):
                piece = batch.filter(pa.array(targets == number))
                pieces[number] += [piece.slice(start, 50) for start in range(0, len(piece), 50)]
        return LocalFrame([[part[i] for i in self.rng.permutation(len(part))] for part in pieces], self.rng)

    def toArrow(self):
        batches = [batch for batches in self.read for batch in batches]
        return pa.Table.from_batches([batches[i] for i in self.rng.permutation(len(batches))])
