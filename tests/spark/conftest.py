"""A session of Spark on two cores of this machine, and frames of rows."""

import contextlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from streamsvm_spark import StreamLearner

os.environ["PYSPARK_PYTHON"] = sys.executable
# Sessions are short: Java's second compiler, and threads that collect garbage, cost more than they save. Also of clusters.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# Of Spark's daemon of Python workers, which is started by Java.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
os.environ["SPARK_CONF_DIR"] = str(Path(__file__).parent)  # spark-defaults.conf


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name in ("spark.sql.warehouse.dir", "spark.local.dir"):
        builder = builder.config(name, str(folder / name))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("FATAL")
    yield session
    session.stop()


@pytest.fixture
def learning():
    """Makes learners, which are closed at the end: ``learning(model, checkpoint)``."""
    with contextlib.ExitStack() as stack:
        yield lambda *arguments, **how: stack.enter_context(StreamLearner(*arguments, **how))


@pytest.fixture(scope="session")
def rows():
    """X float32 [600, 3], and labels of two and of three classes, and a target."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 3)).astype(np.float32)
    return X, (X[:, 0] * X[:, 1] > 0).astype(int), np.abs(X).argmax(axis=1), X[:, 0] + 0.1 * rng.normal(size=600)


def pytest_collection_modifyitems(items):
    # pyspark leaves its sockets to the collector of garbage, and calls what pandas calls old.
    quiet = "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:::pyspark"
    for item in items:
        if "spark" in item.path.parts:
            for filtered in quiet:
                item.add_marker(pytest.mark.filterwarnings(filtered))
