"""Helpers of the benchmarks of Spark: a local session, random rows, and Parquet files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

FEATURES = 20  # of random rows


def start_session(folder: Path, cores: int, **options: str) -> Any:
    """Start a local Spark session; options are Spark's without "spark.", with underscores: ``driver_memory``."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - some parts of the benchmarks run without pyspark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{cores}]").appName("benchmark")
    for name, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder),
        **{f"spark.{name.replace('_', '.')}": value for name, value in options.items()},
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def draw_rows(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random rows, float32 [n, `FEATURES`], and labels of a nonlinear function, bool [n]."""
    X = rng.normal(size=(rows, FEATURES)).astype(np.float32)
    return X, X[:, 0] * X[:, 1] + 0.5 * X[:, 2] > 0


def write_parquet(path: Path, chunks: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
    """Write each chunk of rows and labels as a row group, with array column ``features`` and float64 column ``label``."""
    schema = pa.schema([("features", pa.list_(pa.float32())), ("label", pa.float64())])
    with parquet.ParquetWriter(path, schema) as writer:
        for X, y in chunks:
            n, width = X.shape
            offsets = pa.array(np.arange(0, (n + 1) * width, width, dtype=np.int32))
            features = pa.ListArray.from_arrays(offsets, pa.array(np.ascontiguousarray(X, np.float32).ravel()))
            writer.write_table(pa.table([features, pa.array(y.astype(np.float64))], schema=schema), row_group_size=n)
