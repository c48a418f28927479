"""Compiled functions call no machine code but their own."""

import struct

import pytest
from numba import config, njit, types

from streamsvm.learners.compiled import linear_step
from streamsvm.memory.calls import BLOCK

pytestmark = pytest.mark.skipif(bool(config.DISABLE_JIT), reason="nothing is compiled")

LOCAL = 0
SYMBOLS, FUNCTION = 2, 2  # kinds of sections and of symbols


def bindings(code):
    """The functions in an ELF object of 64 bits, and how each is bound."""
    offset, size, number = (struct.unpack_from(kind, code, at)[0] for kind, at in (("<Q", 40), ("<H", 58), ("<H", 60)))
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, offset + i * size) for i in range(number)]
    _, _, _, _, begin, length, names, *_ = next(section for section in sections if section[1] == SYMBOLS)
    found = {}
    for at in range(begin, begin + length, 24):
        name, info = struct.unpack_from("<IB", code, at)
        if info & 15 == FUNCTION:
            name += sections[names][4]
            found[code[name : code.index(b"\0", name)].decode()] = info >> 4
    return found


def test_copies_of_callees_are_local(tmp_path, monkeypatch):
    # Else a caller executes the copy that its process has loaded first: sums of one model were rounded in several ways, by what
    # numba's cache held when the process began.
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    compiled = njit(cache=True, error_model="numpy")(linear_step.learn_packed.py_func)
    compiled.compile((BLOCK, types.float64, types.float64))
    code = compiled.overloads[compiled.signatures[0]].library._get_compiled_object()
    if not code.startswith(b"\x7fELF\x02\x01"):
        pytest.skip("compiled code is not in ELF objects of 64 bits here")
    functions = bindings(code)
    shared = {name for name, binding in functions.items() if binding != LOCAL}
    assert shared
    assert all("learn_packed" in name for name in shared)
    assert any("scan_row" in name for name in functions)
