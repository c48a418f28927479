"""Compiled functions: those that Python calls have machine code, others are code for their callers."""

import numba
import numpy as np
import pytest

from streamsvm.compiling.calls import address_of
from streamsvm.compiling.common import INTERPRETED
from streamsvm.compiling.functions import compiled, with_numba

pytestmark = pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")


@compiled
def half(x):
    return 0.5 * x


def test_a_callee_has_no_machine_code_until_python_calls_it():
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
        function._cache.disable()  # a caller that a file has needs no callee
    assert total(np.arange(4.0)) == 2.0
    [found] = third.overloads.values()
    assert found.library._waits
    assert third(4.5) == 1.5
    [found] = third.overloads.values()
    assert not getattr(found.library, "_waits", False)
    assert total(np.arange(4.0, dtype=np.float32)) == 2.0


def test_functions_of_users_call_ours():
    @numba.njit
    def twice(x):
        return 2.0 * half(x)

    assert twice(3.0) == 3.0


def test_addresses_need_the_result_that_is_asked_for():
    assert address_of(half, "f8", "f8") > 0
    with pytest.raises(TypeError, match="half must return int64, not float64"):
        address_of(half, "f8", "i8")
    with pytest.raises(TypeError, match=r"put @numba.njit above it"):
        address_of(len, "f8", "f8")


def test_seconds_of_compilation_are_counted():
    from streamsvm.compiling.common import compilation

    before = compilation.seconds
    function = with_numba().Function(lambda x: x + 1.5, {})
    function._cache.disable()
    assert function(1.0) == 2.5
    assert compilation.seconds > before
