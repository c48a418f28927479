"""Keys of the disk cache: they change with everything that a function is compiled from."""

import enum
import importlib
import os
import pkgutil
import subprocess
import sys
import types
from typing import NamedTuple

import pytest

import streamsvm
from refused import refused
from streamsvm.core.compiling.cache_keys import compute_key, measure_callees
from streamsvm.core.compiling.common import INTERPRETED
from streamsvm.core.compiling.functions import compiled

pytestmark = pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")

CALLEE = "def callee(x):\n    return x + NUMBER\n"
CALLER = "def caller(x):\n    return callee(x) * 2.0\n"


def key(callee=CALLEE, caller=CALLER, number=1.0, **options):
    """The key of a function that calls another one, of sources like these."""
    module = types.ModuleType("some_rule")
    module.NUMBER = number
    exec(callee, vars(module))
    module.callee = compiled(**options)(module.callee)
    exec(caller, vars(module))
    return compute_key(compiled(module.caller))


def test_changes_of_machine_code_change_the_key():
    import numba

    changes = [
        {"callee": CALLEE.replace("+", "-")},
        {"caller": CALLER.replace("2.0", "3.0")},
        {"fastmath": True},
        {"inline": True},
    ]
    numbers = [2.0, 1, *(numba.njit(fastmath=fast)(lambda x: x) for fast in (False, True))]  # the last two are helpers
    keys = {key(**change) for change in ({}, *changes, *({"number": number} for number in numbers))}
    assert len(keys) == 1 + len(changes) + len(numbers)


def test_irrelevant_changes_do_not_change_the_key():
    assert key() == key()
    documented = CALLEE.replace(":\n", ':\n    """Add a number."""\n', 1)
    assert key(callee="# a comment\n\n" + documented) == key(callee=documented.replace("Add", "Return the sum with"))


class One(enum.IntEnum):
    MEMBER = 1


class Two(enum.IntEnum):
    MEMBER = 2


Two.__name__, Two.__qualname__ = One.__name__, One.__qualname__


def pair(*names):
    return NamedTuple("Pair", [(name, float) for name in names])(1.0, 2.0)


def module(**values):
    made = types.ModuleType("some_helpers")
    vars(made).update(values)
    return made


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"number": ((1,), 2)}, {"number": ((1, 2),)}),
        ({"number": One}, {"number": Two}),
        ({"number": pair("x", "y")}, {"number": pair("y", "x")}),
        ({"number": module(x=1.0)}, {"number": module(x=2.0)}),
        ({"number": module(inner=module(x=1.0))}, {"number": module(inner=module(x=2.0))}),
        ({"caller": "def caller(x, *, k=1.0):\n    return x * k\n"}, {"caller": "def caller(x, *, k=2.0):\n    return x * k\n"}),
        ({"caller": "def caller(x, k):\n    return x\n"}, {"caller": "def caller(x, *, k):\n    return x\n"}),
    ],
    ids=str,
)
def test_key_includes_referenced_objects(first, second):
    caller = "def caller(x):\n    return x + NUMBER.x + NUMBER.inner.x\n"
    keys = [key(**{"caller": caller, **source}) for source in (first, second, first)]
    assert keys[0] == keys[2] != keys[1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ("memory.block.STATE_END", {0, 1}),
        ("memory.block.LINE", {0, 1}),
        ("budget.merge_table.GRID", {1}),
        ("kernels.none", set()),
    ],
)
def test_key_includes_constants_of_generated_code_and_no_state_of_the_process(change, changed):
    from streamsvm.core.budget.merge import merge_smallest
    from streamsvm.learners.bsgd import step

    code = f"""
import streamsvm.core.{change.rpartition(".")[0]}
streamsvm.core.{change} = 300
from streamsvm.core.budget.merge import merge_smallest
from streamsvm.learners.bsgd import step
from streamsvm.core.compiling.cache_keys import compute_key
print(compute_key(step.learn_one), compute_key(merge_smallest))
"""
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    keys = zip(done.stdout.split(), map(compute_key, (step.learn_one, merge_smallest)), strict=True)
    assert {place for place, (there, here) in enumerate(keys) if there != here} == changed


def test_recursive_functions_have_keys():
    @compiled
    def even(n):
        return True if n == 0 else odd(n - 1)

    @compiled
    def odd(n):
        return False if n == 0 else even(n - 1)

    assert compute_key(even) != compute_key(odd)
    assert compute_key(even) == compute_key(even)


def test_object_without_a_stable_description_has_no_key():
    thing = object()

    @compiled
    def refers(x):
        return thing

    refused("has no key", compute_key, refers, error=TypeError)


def all_functions():
    for module in pkgutil.walk_packages(streamsvm.__path__, "streamsvm."):
        if not module.name.endswith(("__main__", "_machine_code")):
            for value in vars(importlib.import_module(module.name)).values():
                yield from (thing for thing in (value, getattr(value, "learn_one", None)) if hasattr(thing, "py_func"))


def test_every_function_has_a_key():
    functions = list({id(function): function for function in all_functions()}.values())
    assert len(functions) > 300
    assert all(len(compute_key(function)) == 64 and measure_callees(function) for function in functions)
