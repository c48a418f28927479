"""Compiled functions that call no machine code but their own: results are the same to the last bit in every process.

Numba compiles a function together with copies of all that it calls, and optimises these once more. The copies are weak symbols:
of two copies with one name, the process executes the one that it loaded first. A name has a number in it that counts the
functions of the process that compiled it. So which copies share a name, and which of them is executed, depended on what numba's
cache held and on the order in which functions were loaded; and copies that were optimised in different callers add up a sum in
different orders, where `streamsvm.kernels.FAST` lets them. Here the copies become local symbols, which nothing outside replaces.

The module acts when it is imported, on functions of this package and on those that call them.
"""

from __future__ import annotations

from typing import Any

from numba.core import codegen

__all__: list[str] = []

_OURS = "_ZN9streamsvm"  # as the names of compiled functions of the package begin


def _copies(library: Any) -> list[Any]:
    """Return the copies of callees in a library (numba's word for the code of one function), where one of them is of this
    package.
    """
    module = getattr(library, "_final_module", None)
    functions = [] if module is None else [function for function in module.functions if not function.is_declaration]
    if not any(function.name.startswith(_OURS) for function in functions):
        return []
    return [function for function in functions if function.linkage.name == "linkonce_odr"]


def _keep_copies_apart() -> None:
    library = getattr(codegen, "JITCodeLibrary", None)
    finalize = getattr(library, "_finalize_final_module", None)
    if finalize is None:  # another numba: only the last bits are at stake
        return

    def finalize_with_local_copies(self: Any) -> None:
        copies = _copies(self)
        for function in copies:
            function.linkage = "internal"
        finalize(self)  # generates the machine code
        for function in copies:
            function.linkage = "linkonce_odr"  # for the callers, which need one copy of each

    setattr(library, "_finalize_final_module", finalize_with_local_copies)  # noqa: B010 - mypy refuses the assignment


_keep_copies_apart()
