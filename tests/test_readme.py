"""The examples of the README and of the pages in docs give what they say."""

import doctest
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
ARCHITECTURE = README.parent / "docs" / "architecture.md"
CODECS = README.parent / "docs" / "codecs.md"


@pytest.mark.parametrize("page", [README, ARCHITECTURE, CODECS], ids=lambda page: page.name)
def test_examples(page):
    result = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted >= 6
    assert result.failed == 0


def test_example_of_a_pipeline():
    path = README.parent / "examples" / "river_pipeline.py"
    done = subprocess.run([sys.executable, "-W", "error", path], capture_output=True, text=True, check=True)
    assert done.stdout.count("Accuracy") == 3


def test_example_of_a_long_window(capsys):
    example = runpy.run_path(str(README.parent / "examples" / "long_window.py"))
    example["main"](3000, 1000)
    shown = capsys.readouterr().out.splitlines()
    assert "us a row" in shown[0]
    assert shown[1].endswith("the last of 1,000 rows")
    assert int(shown[1].split()[0]) >= 1


def test_example_of_model_selection():
    path = README.parent / "examples" / "model_selection.py"
    done = subprocess.run([sys.executable, "-W", "error", path], capture_output=True, text=True, check=True)
    assert "Chosen: C = " in done.stdout
    assert float(re.search(r"set aside: (\S+) %", done.stdout)[1]) > 97.0
