"""The versions that are needed, and a word about them where they do not fit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from streamsvm.core.warning import warn

_SPARK, _JAVA = (4, 1), 17  # the first with functions of Arrow arrays
_NEEDED = ".".join(map(str, _SPARK))
_WAY = "pip install 'streamsvm[spark]'"


def _check_spark() -> None:
    for name in ("pyspark", "pyspark-client"):
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        if tuple(map(int, found.split(".")[:2])) < _SPARK:
            raise ImportError(f"streamsvm_spark needs pyspark {_NEEDED} or later, and {name} is {found}: {_WAY}")
        return
    raise ImportError(f"streamsvm_spark needs pyspark {_NEEDED} or later, which is not installed: {_WAY}")


def _check_java() -> None:
    from pyspark import SparkContext, TaskContext  # noqa: PLC0415 - it may not be there

    if TaskContext.get() is not None or SparkContext._active_spark_context is not None or "SPARK_REMOTE" in os.environ:
        return  # there is a Java that runs, or none is needed
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        warn(f"Spark needs Java {_JAVA} or later, and there is no `java` on the path: install one, or set JAVA_HOME")
        return
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=20).stderr  # noqa: S603 - as Spark starts it
    except (OSError, subprocess.SubprocessError):
        return
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is not None and int(found[1]) < _JAVA:
        warn(f"Spark needs Java {_JAVA} or later, and {java} is Java {found[1]}: install one, or set JAVA_HOME")


def check_workers(spark: Any) -> None:
    """Warn where the workers of a session on this machine run a Python that has no streamsvm."""
    from pyspark.sql.utils import is_remote  # noqa: PLC0415 - it may not be there

    if is_remote() or not spark.sparkContext.master.startswith("local"):
        return  # the workers are elsewhere
    python = shutil.which(spark.sparkContext.pythonExec)
    if python is not None and Path(python).parent != Path(sys.executable).parent and not _has_streamsvm(python):
        warn(
            f"Spark's workers run {python}, which has no streamsvm: set PYSPARK_PYTHON={sys.executable} in the environment "
            "before the session begins"
        )


@lru_cache
def _has_streamsvm(python: str) -> bool:
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('streamsvm_spark') is None)"
    return not subprocess.run([python, "-c", code], check=False).returncode  # noqa: S603 - as Spark starts it


_check_spark()
_check_java()
