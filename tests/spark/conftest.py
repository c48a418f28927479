"""A session of Spark on two cores of this machine, and frames of rows."""

import os
import sys

import numpy as np
import pytest
from pyspark.sql import SparkSession

os.environ["PYSPARK_PYTHON"] = sys.executable


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("FATAL")
    yield session
    session.stop()


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
