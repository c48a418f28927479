"""Compiled functions: functions that Python calls have machine code, callees are code for their callers."""

import copy
import pickle
import subprocess
import sys

import numba
import numpy as np
import pytest

from refused import refused
from streamsvm.core.compiling.common import INTERPRETED
from streamsvm.core.compiling.functions import compiled, get_address, load_backend

pytestmark = pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")


@compiled
def half(x):
    return 0.5 * x


def test_callee_has_no_machine_code_until_python_calls_it():
    @compiled
    def third(x):
        return x / 3.0

    @compiled
    def total(values):
        result = 0.0
        for value in values:
            result += third(value)
        return result

    for function in (third, total):
        function._cache.disable()  # a cached caller would not compile its callee
    assert total(np.arange(4.0)) == 2.0
    [compiled_third] = third.overloads.values()
    assert compiled_third.library._waits
    assert third(4.5) == 1.5
    [compiled_third] = third.overloads.values()
    assert not getattr(compiled_third.library, "_waits", False)
    assert total(np.arange(4.0, dtype=np.float32)) == 2.0


def test_users_functions_call_ours_and_accept_them_as_arguments():
    @numba.njit
    def twice(x):
        return 2.0 * half(x)

    @numba.njit
    def both(f, x):
        return f(x) + x

    @numba.njit(numba.float64(numba.types.FunctionType(numba.float64(numba.float64)), numba.float64))
    def by_pointer(f, x):
        return f(x)

    assert twice(3.0) == both(half, 2.0) == 3.0
    assert by_pointer(half, 2.0) == 1.0


def test_copies_and_pickles_of_a_function_are_identical():
    from streamsvm.core.kernels import exp2d

    for function in (exp2d, half):
        assert copy.deepcopy([function])[0] is copy.copy(function) is function
    assert pickle.loads(pickle.dumps(exp2d)) is exp2d


def test_implementations_without_a_module_are_compiled():
    def shifted(x):
        return x

    @numba.extending.overload(shifted)
    def implement(x):
        made = {}
        exec("def implementation(x): return x + 1", made)
        return made["implementation"]

    @compiled
    def twice_shifted(x):
        return shifted(shifted(x))

    assert twice_shifted(1) == 3


def test_function_without_a_key_is_compiled_but_not_cached(monkeypatch):
    from streamsvm.core.compiling import disk_cache

    def compute_key(function):
        raise TypeError("it has no key")

    @compiled
    def lonely(x):
        return x * 7.25

    monkeypatch.setattr(disk_cache, "compute_key", compute_key)
    monkeypatch.setattr(disk_cache, "_write_file", lambda path, content: pytest.fail("it was written"))
    assert lonely(2.0) == 14.5


NUMBAS_OWN = """
import numba
from streamsvm.core.compiling.functions import compiled, load_backend

@compiled
def total(x):
    numbers = numba.typed.List()
    for i in range(x):
        numbers.append(i)
    return len(numbers)

total._cache.disable()
assert total(3) == 3
numbers = numba.typed.List([1, 2])
numbers.append(3)
assert str(numbers) == "[1, 2, 3]", numbers
print(total.overloads[(numba.int64,)].fndesc.mangled_name)
"""


@pytest.mark.thorough
def test_numbas_own_functions_stay_callable_and_names_differ_between_processes():
    names = [subprocess.check_output([sys.executable, "-c", NUMBAS_OWN], text=True) for _ in range(2)]
    assert names[0] != names[1]


def test_address_of_a_function_with_another_result_type_is_refused():
    assert get_address(half, "f8", "f8") > 0
    refused("half must return int64, not float64", get_address, half, "f8", "i8", error=TypeError)
    refused(r"put @numba.njit above it", get_address, len, "f8", "f8", error=TypeError)


def test_compilation_time_is_measured():
    from streamsvm.core.compiling.common import compilation

    before = compilation.seconds
    function = load_backend().CompiledFunction(lambda x: x + 1.5, {})
    function._cache.disable()
    assert function(1.0) == 2.5
    assert compilation.seconds > before
