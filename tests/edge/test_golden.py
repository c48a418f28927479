"""Files of each format version are read, with numpy alone and with the library, and predict as they did."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import saved_models
from streamsvm.files.container import VERSION

GOLDEN = Path(__file__).parent / "golden"
FOLDERS = sorted(GOLDEN.iterdir())


def test_each_format_version_has_golden_files():
    assert [folder.name for folder in FOLDERS] == [f"version-{number}" for number in range(1, VERSION + 1)]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_golden_files_predict_as_expected(folder):
    assert sorted(saved_models.check(folder)) == sorted(path.name for path in folder.iterdir() if path.suffix != ".json")


ROOT = Path(__file__).parents[2]

#: Runs a script that can only import the standard library, numpy and this part of the package.
NUMPY_ONLY = """
import runpy, sys

class ImportBlocker:
    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        is_available = first in sys.stdlib_module_names or first in ("numpy", "_distutils_hack")
        files = [f"streamsvm.files.{part}" for part in ("category_names", "characters", "container")]
        is_ours = name in ("streamsvm", "streamsvm.files", *files) or name.startswith("streamsvm.edge")
        if not is_available and not is_ours:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, ImportBlocker())
sys.argv = [sys.argv[1], "check", sys.argv[2]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.once
def test_golden_files_load_with_numpy_alone():
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        NUMPY_ONLY,
        str(ROOT / "tests" / "saved_models.py"),
        str(GOLDEN / "version-1"),
    ]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (0, "15 files answer as expected\n"), process.stderr


def test_both_distributions_require_the_same_python_and_numpy():
    library, edge = (tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in (ROOT, ROOT / "edge"))
    assert edge["requires-python"] == library["requires-python"]
    assert edge["dependencies"] == [requirement for requirement in library["dependencies"] if requirement.startswith("numpy")]
    assert (ROOT / "edge" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
