"""The C compilers of this machine. Tests of C are skipped by name without one; on CI they fail."""

import os
import shutil

import pytest

FOUND = [name for name in ("gcc", "clang") if shutil.which(name)]
#: Compilers to test with, gcc where there is none: what it is then marked with says so.
COMPILERS = FOUND or ["gcc"]
FLAGS = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O2"]
needs_compiler = pytest.mark.skipif(not FOUND and not os.environ.get("CI"), reason="needs gcc or clang")
