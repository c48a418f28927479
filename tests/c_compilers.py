"""The C compilers of this machine. Without one, tests of C are skipped; on CI they fail."""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOUND = [name for name in ("gcc", "clang") if shutil.which(name)]
#: Compilers to test with; gcc on machines without a compiler, where these tests are skipped.
COMPILERS = FOUND or ["gcc"]
#: The same, with ziglang's clang (which lacks sanitizers) on machines without a compiler.
ALSO_CLANG = COMPILERS
HAS_ZIG = find_spec("ziglang") is not None or bool(os.environ.get("CI"))
ZIG = (sys.executable, "-m", "ziglang", "cc")
#: Arguments for ziglang's clang to print warnings without writing files.
ZIG_WARNS = ()
if spec := find_spec("ziglang"):
    headers = Path(spec.submodule_search_locations[0], "lib", "include")
    ZIG_WARNS = (*ZIG[:-1], "clang", "-nostdinc", "-isystem", str(headers), "-ffreestanding", "-fsyntax-only")
if "clang" not in FOUND and spec:
    os.environ["PYTHON"] = sys.executable
    ALSO_CLANG = [*COMPILERS, str(Path(__file__).with_name("clang"))]
FLAGS = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1"]
needs_zig = pytest.mark.skipif(not HAS_ZIG, reason="needs ziglang (extra thorough)")
needs_compiler = pytest.mark.skipif(not FOUND and not os.environ.get("CI"), reason="needs gcc or clang")
