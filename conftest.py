"""Sets the environment of all tests, the examples in docstrings included."""

import gc
import os
import re
from collections import defaultdict
from importlib.util import find_spec

import pytest

# Tests run side by side and their matrices are small: more threads in linear algebra made some of them six times as slow.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is imported, which looks at it then
os.environ.setdefault("STREAMSVM_COMPILE_PROCESSES", "1")  # as many processes run tests

from lists import BASELINES
from streamsvm.core.compiling import ahead_of_time
from streamsvm.core.compiling.common import INTERPRETED

collect_ignore = ["connectors/streamsvm_spark"] if find_spec("pyspark") is None else []

#: The rules to compare with, and hierarchical kernels: to compile them takes a quarter of the quick list's time.
OTHERS = "test_family|hierarchical|hss|exact-fits|with-trees|no budget"
BESIDE = re.compile(rf"(?<![a-z])({'|'.join(BASELINES)})(?![a-z])|{OTHERS}", re.IGNORECASE)
#: How many cases of a test the quick list has, from the first to the last.
QUICK_CASES = 4


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    # Modules and tests are no garbage: to look for some among them took a third of the time. Nor need later collections go
    # through them, of which river asks for two in each check of memory.
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
        """Two workers begin with Kafka, one for each client library and with a broker; others run the rest, test by test.

        pytest-xdist's own groups have no effect with pytest 9.2: https://github.com/pytest-dev/pytest-xdist/issues/1386
        """

        def _split_scope(self, nodeid):
            if not nodeid.startswith("tests/kafka/") or "started_again" in nodeid:  # which has a broker of its own
                return nodeid
            return "confluent" if "confluent" in nodeid else "kafka"

    return Scheduling(config, log)


def pytest_itemcollected(item):
    if not INTERPRETED and BESIDE.search(item.nodeid):
        item.add_marker("thorough")


def pytest_collection_finish(session):
    # Of the whole quick list each worker compiles a share first, for one that needs what another compiles would have to wait.
    worker, workers = os.environ.get("PYTEST_XDIST_WORKER"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1 and not INTERPRETED and len(session.items) > 3000:
        components = [name for name in ahead_of_time.list_components() if not BESIDE.search(name)]
        ahead_of_time.compile_share(components, int(worker.removeprefix("gw")), workers)


def leave_cases_to_the_thorough_list(items):
    cases = defaultdict(list)
    for item in items:
        if not (item.get_closest_marker("thorough") or (INTERPRETED and item.get_closest_marker("once"))):
            cases[item.nodeid.partition("[")[0]].append(item)
    for of_one in cases.values():
        n = len(of_one)
        quick = set(range(n)) if n <= QUICK_CASES else {number * (n - 1) // (QUICK_CASES - 1) for number in range(QUICK_CASES)}
        for number, item in enumerate(of_one):
            if number not in quick:
                item.add_marker("thorough")


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what -m does not ask for
def pytest_collection_modifyitems(items):
    leave_cases_to_the_thorough_list(items)
