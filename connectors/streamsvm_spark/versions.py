"""The versions that are needed, and a word about them where they do not fit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from streamsvm._warnings import warn

__all__: list[str] = []

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


_check_spark()
_check_java()
