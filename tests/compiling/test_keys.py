"""Keys: what a compiled function is compiled from."""

import importlib
import pkgutil
import subprocess
import sys
import types

import pytest

import streamsvm
from streamsvm.compiling.functions import INTERPRETED, compiled
from streamsvm.compiling.keys import key_of, size_of

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
    return key_of(compiled(module.caller))


def test_what_changes_machine_code_changes_the_key():
    keys = [
        key(),
        key(callee=CALLEE.replace("+", "-")),
        key(caller=CALLER.replace("2.0", "3.0")),
        key(number=2.0),
        key(number=1),
        key(fastmath=True),
        key(inline=True),
    ]
    assert len(set(keys)) == len(keys)


def test_what_changes_nothing_changes_no_key():
    assert key() == key()
    documented = CALLEE.replace(":\n", ':\n    """Add a number."""\n', 1)
    assert key(callee="# a comment\n\n" + documented) == key(callee=documented.replace("Add", "Return the sum with"))


def test_functions_that_call_themselves_have_keys():
    @compiled
    def even(n):
        return True if n == 0 else odd(n - 1)

    @compiled
    def odd(n):
        return False if n == 0 else even(n - 1)

    assert key_of(even) != key_of(odd)
    assert key_of(even) == key_of(even)


def test_a_thing_without_a_stable_description_has_no_key():
    thing = object()

    @compiled
    def refers(x):
        return thing

    with pytest.raises(TypeError, match="has no key"):
        key_of(refers)


def all_functions():
    for module in pkgutil.walk_packages(streamsvm.__path__, "streamsvm."):
        if not module.name.endswith(("__main__", "_machine_code")):
            for value in vars(importlib.import_module(module.name)).values():
                yield from (thing for thing in (value, getattr(value, "learn_one", None)) if hasattr(thing, "py_func"))


def test_every_function_has_a_key():
    functions = list({id(function): function for function in all_functions()}.values())
    assert len(functions) > 300
    assert all(len(key_of(function)) == 64 and size_of(function) > 0 for function in functions)


def test_keys_are_those_of_another_process():
    code = "from streamsvm.learners.bsgd import step; from streamsvm.compiling.keys import key_of; print(key_of(step.learn_one))"
    keys = {
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env={"PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2")
    }
    assert len(keys) == 1
