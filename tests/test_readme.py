"""The README's examples give what it says."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_examples():
    result = doctest.testfile(str(README), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted >= 6
    assert result.failed == 0


def test_example_of_a_pipeline():
    path = README.parent / "examples" / "river_pipeline.py"
    done = subprocess.run([sys.executable, "-W", "error", path], capture_output=True, text=True, check=True)
    assert done.stdout.count("Accuracy") == 3


def test_example_of_model_selection():
    path = README.parent / "examples" / "model_selection.py"
    done = subprocess.run([sys.executable, "-W", "error", path], capture_output=True, text=True, check=True)
    assert "Chosen: C = " in done.stdout
    assert float(re.search(r"set aside: (\S+) %", done.stdout)[1]) > 97.0
