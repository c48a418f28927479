"""Noinline functions: compiled once, linked by callers in any process, and copied into users' functions."""

import subprocess
import sys

import pytest

from streamsvm.core.compiling.common import INTERPRETED
from streamsvm.core.compiling.functions import BLOCK_TYPE, load_backend
from streamsvm.core.compiling.signatures import to_numba_types
from streamsvm.core.kernels import compute_kernel_row
from streamsvm.core.memory.slots import compute_slot_kernels

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")]

#: It prints the names of the functions compiled for a caller of `compute_kernel_row`, and the symbol that the caller links to.
CALLER = """
from streamsvm.core.compiling.functions import BLOCK_TYPE, load_backend
from streamsvm.core.compiling.signatures import to_numba_types
from streamsvm.core.compiling.disk_cache import compiled_names
from streamsvm.core.memory.slots import compute_slot_kernels

library = compute_slot_kernels.compile_entry(to_numba_types(f"{BLOCK_TYPE} i8")).library
[callee] = load_backend().find_noinline_callees(library).values()
functions = library._get_module_for_linking().functions
print(*sorted(compiled_names), *(f.name for f in functions if "18compute_kernel_rowB" in f.name))
"""
#: A user's function in numba's own cache.
USERS = """
import numba
import numpy as np
from streamsvm.core.steps.rescale import rescale_vectors

@numba.njit(cache=True)
def moved(x):
    vectors, norms = np.full((2, 1), x, np.float32), np.empty(1, np.float32)
    rescale_vectors(vectors, norms, 1, 2, np.full(2, 3.0), np.zeros(2))
    return vectors[0, 0], norms[0]

if __name__ == "__main__":
    print(*moved(2.0), sum(moved.stats.cache_hits.values()))
"""


def run(*words, folder):
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True, cwd=folder).stdout.split()


def test_callers_have_no_copy_of_a_noinline_callee():
    library = compute_slot_kernels.compile_entry(to_numba_types(f"{BLOCK_TYPE} i8")).library
    assert [function for function, _ in load_backend().find_noinline_callees(library)] == [compute_kernel_row]
    copies = [f for f in library._get_module_for_linking().functions if "18compute_kernel_rowB" in f.name]
    assert [f.is_declaration for f in copies] == [True]


def test_caller_links_to_a_callee_of_another_process(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    *compiled, name = run("-c", CALLER, folder=tmp_path)
    assert {"compute_kernel_row", "compute_slot_kernels"} <= {*compiled}
    assert run("-c", CALLER, folder=tmp_path) == [name]
    [file] = tmp_path.glob("streamsvm/compute_kernel_row-*")
    file.unlink()
    assert run("-c", CALLER, folder=tmp_path) == ["compute_kernel_row", name]
    # With other settings, a callee may have another name: then its caller is compiled again.
    next(tmp_path.glob("streamsvm/compute_kernel_row-*")).unlink()
    monkeypatch.setenv("NUMBA_EXTEND_VARIABLE_LIFETIMES", "1")
    *compiled, new_name = run("-c", CALLER, folder=tmp_path)
    assert (compiled, new_name == name) == (["compute_kernel_row", "compute_slot_kernels"], False)
    monkeypatch.delenv("NUMBA_EXTEND_VARIABLE_LIFETIMES")
    assert run("-c", CALLER, folder=tmp_path) == [new_name]


def test_users_function_has_a_copy_of_a_noinline_callee(tmp_path):
    (tmp_path / "users.py").write_text(USERS)
    assert [run("users.py", folder=tmp_path) for _ in range(2)] == [["6.0", "72.0", "0"], ["6.0", "72.0", "1"]]
