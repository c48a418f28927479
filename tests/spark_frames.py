"""Spark frames for tests, and a frame in a single process that runs tasks and returns batches in random order."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql.types import DoubleType, StructField, StructType

from streamsvm import BSCAClassifier
from streamsvm.files.model_file import serialize_parts
from streamsvm_spark import cascade_tasks, columns


def framed(spark, X, y, partitions=4, **columns):
    """Return a frame with the rows in order, in partitions of equal size."""
    names = ["features", "label", *columns]
    column_values = [(Vectors.dense(x.tolist()), *map(float, more)) for x, *more in zip(X, y, *columns.values(), strict=True)]
    schema = StructType(
        [StructField(name, DoubleType() if i else VectorUDT()) for i, name in enumerate(names)]
    )  # an explicit schema needs no Spark job
    return spark.createDataFrame(spark.sparkContext.parallelize(column_values, partitions), schema)


def stacked(column):
    """Return a column of vectors as an array."""
    return np.stack(column.map(lambda vector: vector.toArray()))


def of_file(model):
    return serialize_parts({"model": model}, {})


def new_model():
    """Return a small, untrained learner."""
    return BSCAClassifier(budget=20, seed=0)


def frame_of(spark, X, y, kind="long", partitions=1, **columns):
    """Return a frame with the rows in order, and labels of an SQL type."""
    features = pa.array([None if x is None else list(map(float, x)) for x in X])
    frame = spark.createDataFrame(pa.table({"features": features, "label": pa.array(y), **columns}))
    return frame.selectExpr("features", f"cast(label as {kind}) label", *columns).coalesce(partitions)


def plain(model, X, y, metric):
    """Train a model and update a metric row by row, prequentially; the first row is only learned."""
    for x, label in zip(X.tolist(), y.tolist(), strict=True):
        row = dict(enumerate(x))
        predicted = model.predict_one(row)
        if predicted is not None:
            metric.update(label, predicted)
        model.learn_one(row, label)
    return of_file(model), metric.get()


class LocalFrame:
    """A replacement of Spark's frame for cascades. Partitions are lists of batches; tasks run in random order."""

    sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(master="none"))  # noqa: N815 - as Spark names it

    def __init__(self, partitions, rng, again=None):
        self.partitions, self.rng = partitions, rng
        self.again = again  # changes the partitions at each reading

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
        """Move rows to the partitions that a function of their partition numbers selects, in pieces in random order."""
        pieces = [[] for _ in range(n)]
        for batch in (batch for batches in self.partitions for batch in batches):
            wanted = np.array([0 if part is None else target(part) for part in batch.column("part").to_pylist()], int) % n
            for place in range(n):
                some = batch.filter(pa.array(wanted == place))
                pieces[place] += [some.slice(start, 50) for start in range(0, len(some), 50)]
        return LocalFrame([[some[i] for i in self.rng.permutation(len(some))] for some in pieces], self.rng)

    def toArrow(self):
        batches = [batch for batches in self.read for batch in batches]
        return pa.Table.from_batches([batches[i] for i in self.rng.permutation(len(batches))])
