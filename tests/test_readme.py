"""The examples of the README and of the pages in docs give what they say."""

import doctest
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib import pyplot

README = Path(__file__).parents[1] / "README.md"
PAGES = sorted((README.parent / "docs").glob("*.md"))
GALLERY = sorted((README.parent / "examples" / "gallery").glob("*.py"))
FIGURES = sorted((README.parent / "docs" / "figures").glob("*.py"))
FIGURE = re.compile(r"^\.\. plot:: figures/(\S+)\n((?: .*\n|\n)*)", re.MULTILINE)
NEED_MORE = {"spark.md"}  # Java and pyspark
BLOCK = re.compile(r"(<!-- not run: .* -->\n)?```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", [README, *(page for page in PAGES if "\n>>> " in page.read_text())], ids=lambda page: page.name)
def test_examples(page):
    result = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted >= 4
    assert result.failed == 0


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in NEED_MORE], ids=lambda page: page.name)
def test_all_python_of_a_page_is_run(page):
    assert [code for reason, code in BLOCK.findall(page.read_text()) if not reason and not code.startswith(">>> ")] == []


@pytest.mark.thorough
@pytest.mark.parametrize("path", [*GALLERY, *FIGURES], ids=lambda path: path.stem)
def test_pictures_are_drawn(path, monkeypatch):
    pyplot.switch_backend("agg")
    monkeypatch.chdir(path.parent)  # where Sphinx runs them
    with pyplot.rc_context():
        kept = runpy.run_path(str(path), run_name="__main__")
        figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
        for figure in figures:
            figure.canvas.draw()
    assert figures
    del kept  # animations, which want to be drawn first
    pyplot.close("all")


def test_figures_are_shown_and_described():
    shown = [found for page in PAGES for found in re.findall(FIGURE, page.read_text())]
    assert sorted(name for name, _ in shown) == [path.name for path in FIGURES]
    assert [name for name, rest in shown if not re.fullmatch(r"   :alt: .*\n\n(   \S.*\n)+", rest)] == []


@pytest.mark.thorough
def test_example_of_a_pipeline():
    path = README.parent / "examples" / "river_pipeline.py"
    done = subprocess.run([sys.executable, "-W", "error", path], capture_output=True, text=True, check=True)
    assert done.stdout.count("Accuracy") == 3


@pytest.mark.thorough
def test_example_of_a_long_window(capsys):
    example = runpy.run_path(str(README.parent / "examples" / "long_window.py"))
    example["main"](3000, 1000)
    shown = capsys.readouterr().out.splitlines()
    assert "us a row" in shown[0]
    assert shown[1].endswith("the last of 1,000 rows")
    assert int(shown[1].split()[0]) >= 1


@pytest.mark.thorough
def test_example_of_model_selection():
    path = README.parent / "examples" / "model_selection.py"
    done = subprocess.run([sys.executable, "-W", "error", path], capture_output=True, text=True, check=True)
    assert "Chosen: C = " in done.stdout
    assert float(re.search(r"set aside: (\S+) %", done.stdout)[1]) > 97.0
