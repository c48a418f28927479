"""Sets the environment of all tests, the examples in docstrings included, before anything imports numba."""

import gc
import hashlib
import os
import re
import shutil
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
DAY = 24 * 3600.0
IMPORT = re.compile(r"^\s*(?:from (?P<module>[\w.]+) )?import (?P<names>\([^)]*\)|[^\n#(]+)", re.MULTILINE)


def imports_of(source):
    """Yield the modules that a source may import, by its text: to parse all of them took a second."""
    for line in IMPORT.finditer(source):
        if line["module"] is None:
            yield from (name.split()[0] for name in line["names"].split(","))
        else:
            yield line["module"]
            yield from (f"{line['module']}.{name}" for name in re.findall(r"\w+", line["names"]))


def compiled_sources():
    """Return the files that compiled code is made of: those that import numba, and all of the package that they import."""
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in ROOT.glob("streamsvm/**/*.py")}
    imports = {module: set(imports_of(path.read_text())) for module, path in files.items()}
    found, waiting = set(), [module for module in files if any(name.split(".")[0] == "numba" for name in imports[module])]
    while waiting:
        found.add(module := waiting.pop())
        waiting.extend((imports[module] & set(files)) - found)
    return [files[module] for module in sorted(found)]


def use_a_cache_of_these_sources():
    """Let numba cache compiled code in a folder that is named after a hash of the sources.

    numba compares a cached function with the file it stands in. It does not see that a function of another file, which it calls,
    has changed, so a cache beside the sources could hide a change that breaks the package.
    """
    if "numba" in sys.modules:
        raise pytest.UsageError("numba was imported before its cache was chosen: by which plugin?")
    digest = hashlib.sha256()
    for path in compiled_sources():
        digest.update(path.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamsvm-tests"
    folder = cache / f"numba-{digest.hexdigest()[:16]}"
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        for old in cache.glob("numba-*"):
            if time.time() - old.stat().st_mtime > DAY:
                shutil.rmtree(old, ignore_errors=True)
    os.utime(folder)
    os.environ["NUMBA_CACHE_DIR"] = str(folder)


collect_ignore = ["connectors/streamsvm_spark"] if find_spec("pyspark") is None else []

if "NUMBA_CACHE_DIR" not in os.environ:  # it is in workers of pytest-xdist, which inherit the environment
    use_a_cache_of_these_sources()
# Tests run side by side and their matrices are small: more threads in linear algebra made some of them six times as slow.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    # Modules and tests are no garbage: to look for some among them took a third of the time. Nor need later collections go
    # through them, of which river asks for two in each check of memory.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(items):
    if os.environ.get("CI") or any(map(shutil.which, ("cc", "gcc", "clang"))):
        return
    for item in items:
        if item.nodeid.startswith("streamsvm/export/c/compiled.py"):
            item.add_marker(pytest.mark.skip(reason="needs gcc or clang"))
