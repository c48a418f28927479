"""Frames of rows in Spark, and one in a single process, whose partitions end, and whose batches come, in any order."""

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
    """A frame whose partitions hold the rows in their order, as many in each."""
    names = ["features", "label", *columns]
    given = [(Vectors.dense(x.tolist()), *map(float, more)) for x, *more in zip(X, y, *columns.values(), strict=True)]
    schema = StructType([StructField(name, DoubleType() if i else VectorUDT()) for i, name in enumerate(names)])  # needs no job
    return spark.createDataFrame(spark.sparkContext.parallelize(given, partitions), schema)


def stacked(column):
    """A column of vectors as an array."""
    return np.stack(column.map(lambda vector: vector.toArray()))


def of_file(model):
    return serialize_parts({"model": model}, {})


def new_model():
    """A small learner that has learned nothing."""
    return BSCAClassifier(budget=20, seed=0)


def frame_of(spark, X, y, kind="long", partitions=1, **columns):
    """A frame with the rows in their order, and labels of a type of SQL."""
    features = pa.array([None if x is None else list(map(float, x)) for x in X])
    frame = spark.createDataFrame(pa.table({"features": features, "label": pa.array(y), **columns}))
    return frame.selectExpr("features", f"cast(label as {kind}) label", *columns).coalesce(partitions)


def plain(model, X, y, metric):
    """What a loop of single rows makes of a model and a metric; the first row is learned only."""
    for x, label in zip(X.tolist(), y.tolist(), strict=True):
        row = dict(enumerate(x))
        predicted = model.predict_one(row)
        if predicted is not None:
            metric.update(label, predicted)
        model.learn_one(row, label)
    return of_file(model), metric.get()


class LocalFrame:
    """Stands in for Spark's frame where a cascade asks for one. Partitions are lists of batches; tasks run in a random order."""

    sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(master="none"))  # noqa: N815 - as Spark names it

    def __init__(self, partitions, rng, again=None):
        self.partitions, self.rng = partitions, rng
        self.again = again  # makes other partitions of these at each reading

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
        """Put each row where a function of its partition's number says, in pieces that come in any order."""
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
