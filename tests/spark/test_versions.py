"""What is said of an environment that does not fit."""

import sys
from types import SimpleNamespace

import pytest

from streamsvm_spark.versions import check_workers


def session_of(python, master="local[2]"):
    return SimpleNamespace(sparkContext=SimpleNamespace(pythonExec=str(python), master=master))


@pytest.fixture
def bare(tmp_path):
    """A Python that finds no package."""
    path = tmp_path / "python3"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    path.chmod(0o755)
    return path


def test_workers_without_the_package_are_warned_of(bare):
    with pytest.warns(UserWarning, match=f"run {bare}, which has no streamsvm: set PYSPARK_PYTHON={sys.executable}"):
        check_workers(session_of(bare))


def test_other_workers_are_not(bare):
    check_workers(session_of(sys.executable))
    check_workers(session_of(bare, "spark://host:7077"))  # it is the path of another machine
