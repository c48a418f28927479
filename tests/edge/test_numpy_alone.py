"""`streamsvm.edge` needs numpy and nothing else, in this tree and as its own distribution."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "edge" / "golden" / "version-1"

#: Only what Python and numpy have, and this part of the package, can be imported.
ALONE = """
import runpy, sys

class Alone:
    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        known = first in sys.stdlib_module_names or first in ("numpy", "_distutils_hack")
        ours = name in ("streamsvm", "streamsvm.files", "streamsvm.files.container") or name.startswith("streamsvm.edge")
        if not known and not ours:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Alone())
sys.argv = [sys.argv[1], "check", sys.argv[2]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.once
def test_saved_models_are_read_by_numpy_alone():
    command = [sys.executable, "-W", "error", "-c", ALONE, str(ROOT / "tests" / "saved_models.py"), str(GOLDEN)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "14 files answer as expected\n"), done.stderr


def test_the_distribution_is_of_the_same_python():
    whole, part = (tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in (ROOT, ROOT / "edge"))
    assert part["requires-python"] == whole["requires-python"]
    assert part["dependencies"] == [needed for needed in whole["dependencies"] if needed.startswith("numpy")]
    assert (ROOT / "edge" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
