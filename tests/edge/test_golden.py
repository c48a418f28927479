"""Files of each version of the format are read, by numpy alone and by the library, and answer as they did."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import saved_models
from streamsvm.files.container import VERSION

GOLDEN = Path(__file__).parent / "golden"
FOLDERS = sorted(GOLDEN.iterdir())


def test_the_version_that_is_written_has_files():
    assert [folder.name for folder in FOLDERS] == [f"version-{number}" for number in range(1, VERSION + 1)]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_predictors_answer_as_expected(folder):
    assert sorted(saved_models.check(folder)) == sorted(path.name for path in folder.iterdir() if path.suffix != ".json")


ROOT = Path(__file__).parents[2]

#: Only what Python and numpy have, and this part of the package, can be imported.
ALONE = """
import runpy, sys

class Alone:
    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        known = first in sys.stdlib_module_names or first in ("numpy", "_distutils_hack")
        files = [f"streamsvm.files.{part}" for part in ("category_names", "container")]
        ours = name in ("streamsvm", "streamsvm.files", *files) or name.startswith("streamsvm.edge")
        if not known and not ours:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Alone())
sys.argv = [sys.argv[1], "check", sys.argv[2]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.once
def test_saved_models_are_read_by_numpy_alone():
    command = [sys.executable, "-W", "error", "-c", ALONE, str(ROOT / "tests" / "saved_models.py"), str(GOLDEN / "version-1")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "14 files answer as expected\n"), done.stderr


def test_the_distribution_is_of_the_same_python():
    whole, part = (tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in (ROOT, ROOT / "edge"))
    assert part["requires-python"] == whole["requires-python"]
    assert part["dependencies"] == [needed for needed in whole["dependencies"] if needed.startswith("numpy")]
    assert (ROOT / "edge" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
