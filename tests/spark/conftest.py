"""Fixtures: a Spark session with two local cores, a factory of `StreamLearner`, and rows."""

import contextlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from kafka_broker import QUICK_JAVA
from streamsvm_spark import StreamLearner

os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ.setdefault("JAVA_TOOL_OPTIONS", " ".join(QUICK_JAVA))
# Java starts the daemon of Python workers, which must find `warm_daemon`.
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
    """Return a function that makes a `StreamLearner`, which is closed after the test: ``learning(model, checkpoint)``."""
    with contextlib.ExitStack() as stack:
        yield lambda *arguments, **settings: stack.enter_context(StreamLearner(*arguments, **settings))


@pytest.fixture(scope="session")
def rows():
    """Return X float32 [600, 3], labels of two classes, labels of three classes, and regression targets."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 3)).astype(np.float32)
    return X, (X[:, 0] * X[:, 1] > 0).astype(int), np.abs(X).argmax(axis=1), X[:, 0] + 0.1 * rng.normal(size=600)


def pytest_collection_modifyitems(items):
    # pyspark leaves its sockets to the garbage collector, and calls deprecated functions of pandas.
    ignored = "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:::pyspark"
    for item in items:
        if "spark" in item.path.parts:
            for warning in ignored:
                item.add_marker(pytest.mark.filterwarnings(warning))
