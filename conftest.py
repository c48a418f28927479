"""Sets the environment of all tests, the examples in docstrings included."""

import gc
import os
import re
import stat
from collections import defaultdict
from importlib.util import find_spec

import pytest

# Tests run in parallel on small matrices: with more threads in linear algebra, some of them took six times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # must be set before numpy is imported
os.environ.setdefault("STREAMSVM_COMPILE_PROCESSES", "1")  # several processes run tests already

from lists import BASELINES, OF_RELEASE
from streamsvm.core.compiling import ahead_of_time
from streamsvm.core.compiling.common import INTERPRETED

#: No test cuts the power, so that none can see what `os.fsync` does, but some thousand calls waited for the disk. Processes that
#: tests start call it, and so do pipes and devices, which refuse it.
_FSYNC = os.fsync


def _check_descriptor(descriptor):
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        _FSYNC(descriptor)


os.fsync = _check_descriptor

collect_ignore = ["connectors/streamsvm_spark"] if find_spec("pyspark") is None else []

#: Baselines and hierarchical kernels, whose compilation takes a quarter of the time of the quick list of tests.
SLOW_TESTS = "test_family|hierarchical|hss|exact-fits|with-trees|no budget"
THOROUGH_PATTERN = re.compile(rf"(?<![a-z])({'|'.join(BASELINES)})(?![a-z])|{SLOW_TESTS}", re.IGNORECASE)
#: Tests that share what one of them has compiled, by numba or a C compiler.
SHARED = "tests/core/compiling/test_plain_numba.py", "tests/export/c/test_writer.py::test_c_predicts_as_every_program"
#: Number of cases of a parametrized test in the quick list, evenly spaced from the first to the last. Without compiling, half as
#: many: they run the same lines of code. Before a release, as many as with compiled code.
QUICK_CASES = 2 if INTERPRETED and not OF_RELEASE else 4


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    # Collecting garbage among the new modules and tests took a third of the time. Freezing them also speeds up later
    # collections: each memory check of river runs two.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        """Groups the Kafka tests by file and client library, because the tests of a file share topics, and tests that share
        what one of them has compiled; all other tests are distributed one by one. Groups of many tests begin first.

        pytest-xdist's own groups have no effect with pytest 9.2: https://github.com/pytest-dev/pytest-xdist/issues/1386
        """

        def _split_scope(self, nodeid):
            if nodeid.startswith(SHARED):
                return next(filter(nodeid.startswith, SHARED))
            if not nodeid.startswith("tests/kafka/") or "started_again" in nodeid:  # it starts its own broker
                return nodeid
            return nodeid.partition("::")[0] + "confluent" * ("confluent" in nodeid)

        def _assign_work_unit(self, node):
            # Tests with Kafka mostly wait: every second worker begins at the other end of the list, with tests that compute.
            if self.nodes.index(node) % 2:
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

    return Scheduling(config, log)


def pytest_itemcollected(item):
    if not INTERPRETED and THOROUGH_PATTERN.search(item.nodeid):
        item.add_marker("thorough")


def pytest_collection_finish(session):
    # For the full quick list, each worker first compiles a share of the code, so that no test waits for another worker.
    worker, workers = os.environ.get("PYTEST_XDIST_WORKER"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1 and not INTERPRETED and len(session.items) > 3000:
        components = [name for name in ahead_of_time.list_components() if not THOROUGH_PATTERN.search(name)]
        ahead_of_time.compile_share(components, int(worker.removeprefix("gw")), workers)


def mark_thorough_cases(items):
    cases = defaultdict(list)
    for item in items:
        if not (item.get_closest_marker("thorough") or (INTERPRETED and item.get_closest_marker("once"))):
            cases[item.nodeid.partition("[")[0]].append(item)
    for test_cases in cases.values():
        n = len(test_cases)
        quick = set(range(n)) if n <= QUICK_CASES else {number * (n - 1) // (QUICK_CASES - 1) for number in range(QUICK_CASES)}
        for number, item in enumerate(test_cases):
            if number not in quick:
                item.add_marker("thorough")


@pytest.hookimpl(tryfirst=True)  # before pytest deselects tests by -m
def pytest_collection_modifyitems(items):
    mark_thorough_cases(items)
