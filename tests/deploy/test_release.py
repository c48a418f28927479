"""What a release is made of says the same everywhere: Pythons, versions, workflows."""

import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest
import yaml

import streamsvm

ROOT = Path(__file__).parents[2]
WHOLE, PART = (tomllib.loads((ROOT / folder / "pyproject.toml").read_text()) for folder in ("", "edge"))
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
TESTS, RELEASE = WORKFLOWS["tests"]["jobs"], WORKFLOWS["release"]["jobs"]


def pythons(project):
    """The versions of Python that the classifiers name."""
    return [name.rpartition(" ")[2] for name in project["classifiers"] if re.search(r":: 3\.\d+$", name)]


def test_the_version_has_one_place():
    assert metadata("streamsvm")["Version"] == streamsvm.__version__
    for project, place in ((WHOLE, "streamsvm/__init__.py"), (PART, "../streamsvm/__init__.py")):
        assert "version" in project["project"]["dynamic"]
        assert project["tool"]["hatch"]["version"]["path"] == place
    assert f"\n## {streamsvm.__version__}, " in (ROOT / "CHANGELOG.md").read_text()
    assert "version:" not in (ROOT / "CITATION.cff").read_text().replace("cff-version:", "")


def test_every_python_that_is_named_is_tried():
    named = pythons(WHOLE["project"])
    assert WHOLE["project"]["requires-python"] == f">={named[0]}"
    assert pythons(PART["project"]) == named
    assert [each["python"] for each in TESTS["tests"]["strategy"]["matrix"]["include"]] == named
    assert RELEASE["extras"]["strategy"]["matrix"]["python"] == named
    others = re.search(r"for version in (.*); do", (ROOT / ".ci" / "run").read_text())[1].split()
    assert [named[0], *others] == named


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_workflows_may_little_and_say_what_they_use(name):
    flow = WORKFLOWS[name]
    assert flow["permissions"] == {"contents": "read"}
    assert "concurrency" in flow
    for job in flow["jobs"].values():
        for step in job.get("steps", []):
            if "uses" in step:
                assert re.search(r"@(v\d+|release/v\d+|[0-9a-f]{40})$", step["uses"]), step
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
    writes = {job for job, found in flow["jobs"].items() if "write" in found.get("permissions", {}).values()}
    assert writes == ({"build", "publish"} if name == "release" else set())


def test_nothing_is_published_untried():
    assert sorted(RELEASE["publish"]["needs"]) == sorted(RELEASE.keys() - {"publish"})
    assert RELEASE["publish"]["environment"] == "pypi"
    assert RELEASE["tests"]["uses"] == "./.github/workflows/tests.yml"
    assert "workflow_call" in WORKFLOWS["tests"][True]  # `on` is true, says YAML


def test_the_page_names_what_there_is():
    page = (ROOT / "docs" / "releasing.md").read_text()
    for name in re.findall(r"[\w./-]+/[\w.-]+\.(?:py|yml)", page):
        assert (ROOT / name).is_file(), name
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)`", page)) <= targets


def test_every_extra_for_users_is_tried():
    uses = set(re.findall(r'^    "(\w+)": """$', (ROOT / "release" / "check_extras.py").read_text(), re.MULTILINE))
    assert uses == WHOLE["project"]["optional-dependencies"].keys() - {
        "benchmark",
        "dev",
        "docs",
        "examples",
        "release",
        "test",
        "thorough",
    }
