"""Imports run downward only: a part of the package imports only parts that are listed below it."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

import streamsvm

ROOT = Path(streamsvm.__file__).parent
#: The folder of each package's modules.
PLACES = {"streamsvm": ROOT} | {
    name: Path(__file__).parents[1] / "connectors" / name for name in ("streamsvm_kafka", "streamsvm_spark")
}
#: Parts from the top down; parts in one line must not import each other. Add new parts here.
LAYERS = ("__main__", "cli", "export", "batch linear explanations", "from_tables", "learners stream edge", "core", "files")
LEVELS = {part: -number for number, layer in enumerate(LAYERS) for part in layer.split()}


@functools.cache
def imports(path):
    """Return the modules of our packages that a file imports, also within functions."""
    return [*iter_imports(path)]


def iter_imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PLACES:
            modules = [f"{node.module}.{name.name}" for name in node.names]
            yield from (module if exists(module) else node.module for module in modules)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] in PLACES)


def exists(module):
    package, *parts = module.split(".")
    path = PLACES[package].joinpath(*parts)
    return path.is_dir() or path.with_suffix(".py").is_file()


@functools.cache
def files():
    return {
        ".".join((package, *path.relative_to(place).with_suffix("").parts)): path
        for package, place in PLACES.items()
        for path in place.rglob("*.py")
    }


def test_imports_run_downward():
    modules = {name: path for name, path in files().items() if name.startswith("streamsvm.") and name != "streamsvm.__init__"}
    for module, path in modules.items():
        part = module.split(".")[1]
        for imported in imports(path):
            if imported.startswith("streamsvm."):  # not its public names, for who uses the package as users do
                other = imported.split(".")[1]
                assert other == part or LEVELS[other] < LEVELS[part], f"{module} imports {imported}"


def test_no_modules_import_each_other():
    known = {name.removesuffix(".__init__"): path for name, path in files().items()}
    graph = {name: {other for other in imports(path) if other in known and other != "streamsvm"} for name, path in known.items()}
    graph |= {package: set() for package in PLACES}  # whose public names come from anywhere
    done, open_ = set(), []

    def visit(name):
        assert name not in open_, " -> ".join([*open_[open_.index(name) :], name])
        if name not in done:
            open_.append(name)
            for other in graph[name]:
                visit(other)
            done.add(open_.pop())

    for name in graph:
        visit(name)


@pytest.mark.thorough
def test_parts_are_attributes_of_the_package():
    code = (
        "import streamsvm\n"
        "for part in 'batch core edge export learners linear stream'.split():\n"
        "    assert getattr(streamsvm, part).__name__ == f'streamsvm.{part}'\n"
        "    assert part in dir(streamsvm)\n"
        "assert streamsvm.BSGDClassifier is streamsvm.learners.BSGDClassifier\n"
        "assert 'Any' not in dir(streamsvm) and set(streamsvm.__all__) <= set(dir(streamsvm))\n"
        "assert not hasattr(streamsvm, 'nothing')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
