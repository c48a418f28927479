"""Compiled functions contain no machine code of other functions."""

import struct

import numba
import pytest

from streamsvm.core.compiling.common import INTERPRETED
from streamsvm.core.compiling.functions import load_backend
from streamsvm.core.compiling.signatures import to_numba_types
from streamsvm.core.steps import linear_step

pytestmark = pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")

LOCAL = 0
SYMBOLS, FUNCTION, NOWHERE = 2, 2, 0  # types of ELF sections and symbols; the section index of undefined symbols


def bindings(code):
    """Return the functions that a 64-bit ELF object defines, and the binding of each."""
    offset, size, number = (
        struct.unpack_from(kind, code, position)[0] for kind, position in (("<Q", 40), ("<H", 58), ("<H", 60))
    )
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, offset + i * size) for i in range(number)]
    _, _, _, _, start, length, names, *_ = next(section for section in sections if section[1] == SYMBOLS)
    symbol_bindings = {}
    for position in range(start, start + length, 24):
        name, info, _, section = struct.unpack_from("<IBBH", code, position)
        if info & 15 == FUNCTION and section != NOWHERE:
            name += sections[names][4]
            symbol_bindings[code[name : code.index(b"\0", name)].decode()] = info >> 4
    return symbol_bindings


def test_copies_of_callees_are_local(monkeypatch, tmp_path):
    # Otherwise, a caller would execute the copy that its process has loaded first, and sums of the same model would be rounded
    # differently, depending on the content of the cache. Whether the compiler copies or inlines a callee depends on the
    # processor.
    function = load_backend().CompiledFunction(linear_step.learn_full_row.py_func, {"error_model": "numpy"})
    function._cache.disable()
    code = function.compile_entry(to_numba_types("u1:1 f8 f8")).library._get_compiled_object()
    if not code.startswith(b"\x7fELF\x02\x01"):
        pytest.skip("compiled code is not in ELF objects of 64 bits here")
    shared = {name for name, binding in bindings(code).items() if binding != LOCAL}
    assert shared
    assert all("learn_full_row" in name or name.startswith("NRT_") for name in shared)


def test_literal_numbers_have_ordinary_types():
    add = load_backend().CompiledFunction(lambda x, y, flag: x + y if flag else x, {})
    call = load_backend().CompiledFunction(lambda x: add(x, 1, True) + add(x, y=x, flag=False) + add(2, x, x > 1), {})
    for function in (add, call):
        function._cache.disable()
    assert call(3) == 4 + 3 + 5
    assert len(add.overloads) == 1


def test_options_of_callers_do_not_affect_callees():
    square = load_backend().CompiledFunction(lambda x: x * x + 1.0, {})
    square._cache.disable()
    assert numba.njit(fastmath=True, forceinline=True)(lambda x: square(x) + x)(2.0) == 7.0
    [result] = square.overloads.values()
    assert not {"fast", "alwaysinline"} & {*result.library.get_llvm_str().split()}


def test_users_inlined_functions_are_read_again_for_each_caller():
    load_backend()
    names = {"factor": 2}
    exec("def scaled(x):\n    return factor * x", names)
    scaled, results = numba.njit(inline="always")(names["scaled"]), []
    for names["factor"] in (2, 3):
        results.append(numba.njit(lambda x: scaled(x) + scaled(x + 1))(1))
    assert results == [6, 9]
