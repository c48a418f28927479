"""Builds the machine code of a wheel: a Python extension module with all compiled functions that public estimators call.

    python release/machine_code.py FOLDER      # writes _machine_code.abi3.so and _machine_code.json

Numba compiles the entries of `streamsvm/core/compiling/entries.json` for `entries.PROCESSOR`. Their LLVM code becomes position
independent objects, which a C compiler (CC, or cc) links with `machine_code.c` and a function per entry that converts Python's
values. Machine code depends neither on the version of Python nor on that of numba. The build needs the headers of numpy and
Python.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from entries import ENVIRONMENT, PROCESSOR, TARGET

if os.environ.get("STREAMSVM_MACHINE_CODE") != "0":  # numba reads these settings when it is imported
    os.execve(sys.executable, [sys.executable, *sys.argv], ENVIRONMENT)

import numpy as np
from llvmlite import binding

from streamsvm.core.compiling.common import import_object
from streamsvm.core.compiling.functions import load_backend
from streamsvm.core.compiling.machine_code import LIBRARY_PATH, METADATA_PATH, compute_sources_digest
from streamsvm.core.compiling.signatures import ArrayType, NumberType, TupleType, parse_signature, to_numba_types

#: Numba's names of scipy's matrix products and decompositions.
LINEAR_ALGEBRA = re.compile(r"numba_(ez_)?xx\w+")
#: Symbols that may stay undefined, because Python or the C libraries define them.
FOREIGN = re.compile(
    r"_?Py\w+|_ITM_\w+|(mem(cpy|set|move|cmp)|malloc|free|realloc|abort|str(cmp|len|str)|__stack_chk_fail|_GLOBAL_OFFSET_TABLE_|__\w+)|"
    r"(exp|exp2|expm1|log|log2|log10|log1p|pow|tanh|sqrt|sin|cos|floor|ceil|fma|rint|hypot|sinh|cosh|tan|atan2?)f?"
)
C_TYPES = {"f8": "double", "i8": "int64_t", "u8": "uint64_t", "f4": "float", "b1": "int8_t"}
TO_PYTHON = {
    "f8": "PyFloat_FromDouble",
    "f4": "PyFloat_FromDouble",
    "i8": "PyLong_FromLongLong",
    "u8": "PyLong_FromUnsignedLongLong",
    "b1": "PyBool_FromLong",
}


def extract_module(result: Any, exported_names: dict[str, str]) -> Any:
    """Return the LLVM code of a function and its callees, except noinline ones. Only ``exported_names`` stay visible, renamed."""
    module = binding.parse_bitcode(result.library._get_module_for_linking().as_bitcode())
    for value in (*module.functions, *module.global_variables):
        if value.name in exported_names:
            value.linkage, value.name = "external", exported_names[value.name]
        elif value.linkage == binding.Linkage.external and not value.is_declaration:
            value.linkage = "internal"
    return module


def extract_entry(result: Any, name: str) -> Any:
    """Return the LLVM code of an entry, named ``name``, and ``name_c`` for calls by address."""
    return extract_module(result, {result.fndesc.llvm_func_name: name, result.fndesc.llvm_cfunc_wrapper_name: f"{name}_c"})


def extract_noinline_callee(function: Any, arguments: tuple[Any, ...]) -> Any:
    """Return the LLVM code of a noinline function."""
    result = function.overloads[arguments]
    return extract_module(result, {result.fndesc.llvm_func_name: result.fndesc.llvm_func_name})


def link_objects(modules: Iterator[Any], exported_names: set[str]) -> bytes:
    """Link LLVM modules into one object file that exports these names; functions that several modules call occur once."""
    linked = next(modules)
    for module in modules:
        linked.link_in(module)
    for value in (*linked.functions, *linked.global_variables):
        if not value.is_declaration and value.name not in exported_names:
            value.linkage = "internal"
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_triple(binding.get_process_triple()).create_target_machine(
        cpu=PROCESSOR, features="", opt=3, reloc="pic", codemodel="default"
    )
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=0))
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(linked, builder)
    return bytes(machine.emit_object(linked))


class Wrapper:
    """Generates the C function that converts Python's values, and calls an entry."""

    def __init__(self, name: str, path: str, signature: str, nogil: bool, needs_scipy: bool) -> None:
        arguments, _, result = signature.partition(" -> ")
        self.name, self.path, self.arguments, self.result, self.nogil = name, path, arguments, result, nogil
        self.needs_scipy = needs_scipy
        self.declared: list[str] = []  # C declarations of the arguments
        self.checks: list[str] = []  # C conditions that the arguments must meet
        self.c_arguments: list[tuple[str, str]] = []  # C types and values of the arguments of the machine code

    def _add_argument(self, argument: Any, expression: str) -> None:
        """Add the declarations and checks for an argument of a type, which a C expression returns."""
        n = len(self.declared)
        if isinstance(argument, TupleType):
            self.checks.append(f"is_tuple({expression}, {len(argument.items)})")
            for i, item in enumerate(argument.items):
                self._add_argument(item, f"PyTuple_GetItem({expression}, {i})")
        elif isinstance(argument, ArrayType):
            self.declared.append(f"Given v{n};")
            code, size = np.dtype(argument.dtype).kind, np.dtype(argument.dtype).itemsize
            self.checks.append(
                f"take_array({expression}, '{code}', {size}, {argument.ndim}, {int(not argument.read_only)}, &v{n})"
            )
            self.c_arguments += [
                ("void *", "NULL"),
                ("void *", "NULL"),
                ("intptr_t", f"v{n}.size"),
                ("intptr_t", f"v{n}.itemsize"),
                ("void *", f"v{n}.data"),
            ]
            self.c_arguments += [
                ("intptr_t", f"v{n}.{field}[{i}]") for field in ("shape", "strides") for i in range(argument.ndim)
            ]
        else:
            self.declared.append(f"{C_TYPES[argument.dtype]} v{n};")
            self.checks.append(f"take_{argument.dtype}({expression}, lenient, &v{n})")
            self.c_arguments.append((C_TYPES[argument.dtype], f"v{n}"))

    def lines(self) -> Iterator[str]:
        """Yield the lines of the C function."""
        arguments = parse_signature(self.arguments)
        for i, argument in enumerate(arguments):
            self._add_argument(argument, f"PyTuple_GetItem(args, {i})")
        result_types = parse_signature(self.result)
        items = result_types[0].items if result_types and isinstance(result_types[0], TupleType) else result_types
        assert all(isinstance(item, NumberType) for item in items), (self.path, self.result)
        fields = " ".join(f"{C_TYPES[item.dtype]} r{i};" for i, item in enumerate(items)) or "void *none;"
        yield f"typedef struct {{ {fields} }} Result_{self.name};"
        types = ", ".join(["Result_" + self.name + " *", "const Failure **", *(c_type for c_type, _ in self.c_arguments)])
        yield f"int32_t {self.name}({types});"
        yield f"void {self.name}_c(void);"
        yield f"static int take_{self.name}(PyObject *args, int lenient, PyObject **result)"
        yield "{"
        yield from (f"    {declared}" for declared in self.declared)
        yield f"    if (PyTuple_Size(args) != {len(arguments)}"
        yield from (f"        || !{check}" for check in self.checks)
        yield "    )"
        yield "        return 0;"
        if self.needs_scipy:
            yield "    if (!has_scipy())"
            yield "        return *result = NULL, 1;"
        yield f"    Result_{self.name} out = {{0}};"
        yield "    const Failure *failure = NULL;"
        call = f"{self.name}({', '.join(['&out', '&failure', *(value for _, value in self.c_arguments)])})"
        yield "    int32_t status;"
        yield f"    {'Py_BEGIN_ALLOW_THREADS' if self.nogil else ''}"
        yield f"    status = {call};"
        yield f"    {'Py_END_ALLOW_THREADS' if self.nogil else ''}"
        values = [f"{TO_PYTHON[item.dtype]}(out.r{i})" for i, item in enumerate(items)]
        if not result_types:
            value = "(Py_IncRef(Py_None), Py_None)"
        elif isinstance(result_types[0], TupleType):
            value = f'Py_BuildValue("({"N" * len(items)})", {", ".join(values)})'
        else:
            value = values[0]
        yield f"    *result = status == 0 || status == -2 ? {value} : failed(status, failure);"
        yield "    (void)lenient;"
        yield "    return 1;"
        yield "}"
        yield ""


def main(folder: Path) -> None:
    """Write the machine code."""
    folder.mkdir(parents=True, exist_ok=True)
    library, metadata_path = folder / LIBRARY_PATH.name, folder / METADATA_PATH.name
    table = json.loads(TARGET.read_text())["entries"]
    entries = [(entry_path, signature) for entry_path, signatures in sorted(table.items()) for signature in signatures]
    wrappers: list[Wrapper] = []
    linked_callees: set[Any] = set()

    def all_modules() -> Iterator[Any]:
        for number, (entry_path, signature) in enumerate(entries):
            if sys.stdout.isatty():
                print(f"\r{number + 1} of {len(entries)}: {entry_path}\033[K", end="", flush=True)
            function, name = import_object(entry_path), f"streamsvm_{number}"
            result = function.compile_entry(to_numba_types(signature.partition(" -> ")[0]))
            noinline = load_backend().find_noinline_callees(result.library)
            modules = [extract_entry(result, name), *(extract_noinline_callee(*callee) for callee in noinline)]
            needs_scipy = any(LINEAR_ALGEBRA.fullmatch(called.name) for module in modules for called in module.functions)
            wrappers.append(Wrapper(name, entry_path, signature, bool(function.targetoptions.get("nogil")), needs_scipy))
            callees = zip([entry_path, *noinline], modules, strict=True)
            yield from (module for callee, module in callees if callee not in linked_callees)
            linked_callees.update(noinline)

    with tempfile.TemporaryDirectory() as work:
        path = Path(work, "streamsvm.o")
        exported_names = {f"streamsvm_{n}{suffix}" for n in range(len(entries)) for suffix in ("", "_c")}
        path.write_bytes(link_objects(all_modules(), exported_names))
        source = Path(work, "machine_code.c")
        rows = [
            f'    {{"{w.path}", "{w.arguments} -> {w.result}", take_{w.name}, (void *){w.name}_c, {w.needs_scipy:d}}},'
            for w in wrappers
        ]
        lines = [line for w in wrappers for line in w.lines()]
        table_lines = ["static const Entry entries[] = {", *rows, "};", f"static const int n_entries = {len(rows)};", ""]
        source.write_text("\n".join([Path(__file__).with_name("machine_code.c").read_text(), *lines, *table_lines]))
        includes = [f"-I{sysconfig.get_path('include')}", f"-I{np.get_include()}"]
        flags = [
            "-std=c11",
            "-O2",
            "-Wall",
            "-Werror",
            "-fPIC",
            "-fvisibility=hidden",
            "-shared",
            "-s",
            "-Wl,--gc-sections",
            "-Wl,-Bsymbolic",
            *([f'-DLEVEL="{PROCESSOR}"'] if PROCESSOR.startswith("x86-64-") else []),
        ]
        command = [*shlex.split(os.environ.get("CC", "cc")), *flags, *includes, str(source), str(path), "-o", str(library), "-lm"]
        subprocess.run(command, check=True)
    undefined = subprocess.run(["nm", "-D", "--undefined-only", str(library)], check=True, capture_output=True, text=True).stdout
    unknown = [
        name for name in (line.split()[-1].partition("@")[0] for line in undefined.splitlines()) if not FOREIGN.fullmatch(name)
    ]
    assert not unknown, f"symbols that nobody has: {unknown}"
    metadata = {
        "processor": PROCESSOR,
        "sources": compute_sources_digest(),
        "library": hashlib.sha256(library.read_bytes()).hexdigest(),
    }
    metadata_path.write_text(json.dumps(metadata, indent=1) + "\n")
    print(f"\r{library}: {len(wrappers)} entries, {library.stat().st_size:,} bytes\033[K")


main(Path(sys.argv[1]))
