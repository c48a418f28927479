"""Configures hypothesis, fixtures of all tests, and the selection of tests for runs without compiled code."""

import gc
import signal
from importlib.util import find_spec

import numpy as np
import pytest
from _pytest.doctest import DoctestModule
from hypothesis import settings

import checkpoints
from command_words import Done, main
from lists import OF_RELEASE
from streamsvm.core.compiling.common import INTERPRETED
from streamsvm.stream import CheckpointFolder

# A shell starts background processes with Ctrl-C ignored, and commands under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Without a deadline: the first example compiles, and the machine may be busy. With hypothesis' own number of examples before a
# release.
settings.register_profile("whole", deadline=None, max_examples=100 if OF_RELEASE else 40)
settings.load_profile("whole")

# Imported when a process that shall be killed is started: it learns, and would compile in each worker before the first test.
collect_ignore = ["warm_learner.py"]
collect_ignore += ["user_code.py"]  # only type checkers read it

if find_spec("pyspark") is None or INTERPRETED:
    collect_ignore += ["spark", "spark_frames.py"]  # 450 MB: an environment of its own, and a step of its own in .ci/run

#: Tests of layers above compiled code, or of compilation: they need no run without compiling.
ONCE = (
    "batch/adapter",
    "batch/csmo/test_probabilities.py",
    "cli",
    "core/test_nested_frames.py",
    "deploy",
    "edge",
    "examples",
    "export",
    "files",
    "kafka",
    "learners/test_wrapping.py",
    "linear/test_fit.py",
    "stream",
    "test_docstrings.py",
    "test_doors.py",
    "test_extras.py",
    "test_layers.py",
    "test_ratios.py",
    "test_readme.py",
    "test_types.py",
)

if INTERPRETED:
    # Compiled arithmetic overflows in silence: integers wrap around (random numbers are made of that), floats become infinite.
    np.seterr(all="ignore")
    collect_ignore += ONCE


def pytest_configure(config):
    if INTERPRETED:
        config.option.markexpr = f"({config.option.markexpr or 'not thorough'}) and not once"


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    # Tests have no doctests, and searching all of their functions takes seconds.
    return [collector for collector in (yield) if not isinstance(collector, DoctestModule)]


def pytest_itemcollected(item):
    if item.get_closest_marker("broker"):  # which starts in seconds, after Maven has fetched it
        item.add_marker("thorough")
        # kafka-python leaves a socket open where a connection is closed while it is made, as happens on a busy machine.
        item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(scope="module")
def model():
    """Return a trained pipeline."""
    return checkpoints.learned()


@pytest.fixture
def few_objects():
    """Nothing that is there already is looked at by `gc.collect`, which river's check of memory calls: it takes half a second."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def folder(tmp_path):
    """Return a locked folder for checkpoints."""
    with CheckpointFolder(tmp_path / "state") as folder:
        yield folder


@pytest.fixture
def call(capfd):
    """Calls the command line in this process, with `with_a_model`; checks its status (unless None), and its errors."""

    def run(*words, status=0, says=""):
        capfd.readouterr()
        try:
            found = main(words)
        except SystemExit as left:
            found = left.code
        done = Done(found, *capfd.readouterr())
        assert status in (None, done.status), done.stderr
        assert says in done.stderr, done.stderr
        return done

    return run
