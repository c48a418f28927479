"""Examples in the README and in the pages of docs produce the output that they show."""

import doctest
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib import pyplot

from forked import CommandsOfPython

README = Path(__file__).parents[1] / "README.md"
PAGES = sorted((README.parent / "docs").glob("*.md"))
GALLERY = sorted((README.parent / "examples" / "gallery").glob("*.py"))
FIGURES = sorted((README.parent / "docs" / "figures").glob("*.py"))
FIGURE = re.compile(r"^\.\. plot:: figures/(\S+)\n((?: .*\n|\n)*)", re.MULTILINE)
NEED_MORE = {"spark.md"}  # Java and pyspark
FILE = re.compile(r"<!-- not run: the file (\S+) -->\n```\w+\n(.*?)```\n", re.DOTALL)
BLOCK = re.compile(r"(<!-- not run: .* -->\n)?```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", [README, *(page for page in PAGES if "\n>>> " in page.read_text())], ids=lambda page: page.name)
def test_examples(page):
    result = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted >= 4
    assert result.failed == 0


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in NEED_MORE], ids=lambda page: page.name)
def test_all_python_of_a_page_is_run(page):
    assert [code for reason, code in BLOCK.findall(page.read_text()) if not reason and not code.startswith(">>> ")] == []


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md", "docs/extending.md"])
def test_files_that_are_named_exist(page):
    text = (README.parent / page).read_text()
    there = {
        path
        for folder in (".ci", "benchmarks", "connectors", "docs", "release", "streamsvm", "tests")
        for path in files_in(folder)
    }
    named = set(re.findall(r"`([\w/]+\.(?:py|rst|json|c))`", text)) - {name for name, _ in FILE.findall(text)}
    assert [name for name in sorted(named) if not any(path.endswith(f"/{name}") for path in there)] == []


def files_in(folder):
    return [f"/{path.relative_to(README.parent)}" for path in (README.parent / folder).rglob("*.*")]


@pytest.mark.thorough
def test_files_of_recipes_pass_their_tests(tmp_path):
    root = README.parent
    for name in ("streamsvm", "connectors", "tests"):
        shutil.copytree(root / name, tmp_path / name)  # with what Python has compiled
    shutil.copy(root / "pyproject.toml", tmp_path)
    written = FILE.findall((root / "docs" / "extending.md").read_text())
    paths = [tmp_path / (name if "/" in name else f"sqlite/{name}") for name, _ in written]
    for path, (_, text) in zip(paths, written, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for package, name, module in (
        ("streamsvm/learners", "FIFOPerceptron", "streamsvm.learners.fifoperceptron"),
        ("streamsvm/core/budget", "Forgetting", "streamsvm.core.budget.forgetting"),
        ("connectors/streamsvm_kafka", "LogfmtCodec", "streamsvm_kafka.codecs.logfmt"),
    ):
        with (tmp_path / package / "__init__.py").open("a") as file:
            file.write(f"\nfrom {module} import {name}\n__all__ += [{name!r}]\n")
    with (tmp_path / "connectors/streamsvm_kafka/codecs/__init__.py").open("a") as file:
        file.write('\nfrom streamsvm_kafka.codecs.logfmt import LogfmtCodec\nCODECS["logfmt"] = LogfmtCodec\n')
    places = os.pathsep.join(str(tmp_path / name) for name in (".", "connectors", "sqlite"))
    command = [sys.executable, "-m", "pytest", "-q", *(path for path in paths if path.suffix == ".py")]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": places}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def open_process(words, *arguments, open_real=subprocess.Popen, **options):
    """As `subprocess.Popen`; our own commands are forked."""
    is_ours = words[:3] == [sys.executable, "-m", "streamsvm"]
    return CommandsOfPython.Popen(words, **options) if is_ours else open_real(words, *arguments, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)  # the plots of docs/figures are made for the site
def test_pictures_are_drawn(path, monkeypatch):
    pyplot.switch_backend("agg")
    monkeypatch.chdir(path.parent)  # where Sphinx runs them
    monkeypatch.setattr(subprocess, "Popen", open_process)
    with pyplot.rc_context():
        kept = runpy.run_path(str(path), run_name="__main__")
        figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
        for figure in figures:
            figure.canvas.draw()
    assert figures
    del kept  # animations, which want to be drawn first
    pyplot.close("all")


def test_figures_are_shown_and_described():
    shown = [image for page in PAGES for image in re.findall(FIGURE, page.read_text())]
    assert sorted(name for name, _ in shown) == [path.name for path in FIGURES]
    assert [name for name, rest in shown if not re.fullmatch(r"   :alt: .*\n\n(   \S.*\n)+", rest)] == []


@pytest.mark.parametrize("page", [page for page in PAGES if ".py::test_" in page.read_text()], ids=lambda page: page.name)
def test_tests_that_a_page_names_are_there(page):
    for file, name in re.findall(r"`(?:tests/)?([\w/]+\.py)::(\w+)`", page.read_text()):
        assert f"def {name}(" in (README.parent / "tests" / file).read_text(), f"{file} has no {name}"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("river_pipeline", (), r"(?s)(.*Accuracy: \d){3}.*"),
        ("long_window", (3000, 1000), r".*us a row.*\n\s*[1-9]\d* .*the last of 1,000 rows\n"),
        ("model_selection", (), r"(?s).*Chosen: C = .* set aside: 9[789]\.\d %\n"),
    ],
)
def test_what_an_example_says(name, arguments, says, capsys):
    runpy.run_path(str(README.parent / "examples" / f"{name}.py"))["main"](*arguments)
    assert re.fullmatch(says, said := capsys.readouterr().out), said


def test_pages_agree_on_compile_times_and_on_the_time_of_a_row():
    """The first page and those that it points to state the same figures."""
    text = {name: " ".join((README.parent / name).read_text().split()) for name in ("README.md", "docs/install.md")}
    times = [
        re.findall(
            r"(\d+(?: to \d+)?) (?:seconds )?of processor time|, and (\d+ to \d+) for `BSGD|`BSGDClassifier` (\d+ to \d+)", t
        )
        for t in text.values()
    ]
    figures = [sorted(figure for groups in page for figure in groups if figure) for page in times]
    assert figures == [["13 to 15", "33 to 38"]] * 2
    row = re.search(r"`SVMClassifier` \| \*\*92.6\*\* \| \*\*0.19\*\* \| (\d+) \|", text["README.md"])[1]
    assert f"a row costs {row} microseconds" in " ".join((README.parent / "docs/choose.md").read_text().split())
    assert f"14 with low and {row} with normal effort" in " ".join((README.parent / "docs/stacking.md").read_text().split())
