"""Tests that Python versions, the version of the package, and workflows are consistent in all files of a release."""

import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest
import yaml

import streamsvm

ROOT = Path(__file__).parents[2]
PROJECT, EDGE_PROJECT = (tomllib.loads((ROOT / folder / "pyproject.toml").read_text()) for folder in ("", "edge"))
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
TESTS, RELEASE = WORKFLOWS["tests"]["jobs"], WORKFLOWS["release"]["jobs"]


def read_python_versions(project):
    """Return the Python versions in the classifiers."""
    return [name.rpartition(" ")[2] for name in project["classifiers"] if re.search(r":: 3\.\d+$", name)]


def test_version_is_defined_once():
    assert metadata("streamsvm")["Version"] == streamsvm.__version__
    for project, path in ((PROJECT, "streamsvm/__init__.py"), (EDGE_PROJECT, "../streamsvm/__init__.py")):
        assert "version" in project["project"]["dynamic"]
        assert project["tool"]["hatch"]["version"]["path"] == path
    assert f"\n## {streamsvm.__version__}, " in (ROOT / "CHANGELOG.md").read_text()
    assert "version:" not in (ROOT / "CITATION.cff").read_text().replace("cff-version:", "")


def test_every_supported_python_version_is_tested():
    versions = read_python_versions(PROJECT["project"])
    assert PROJECT["project"]["requires-python"] == f">={versions[0]}"
    assert read_python_versions(EDGE_PROJECT["project"]) == versions
    assert [entry["python"] for entry in TESTS["tests"]["strategy"]["matrix"]["include"]] == versions
    assert RELEASE["extras"]["strategy"]["matrix"]["python"] == versions
    other_versions = re.search(r"for version in (.*); do", (ROOT / ".ci" / "run").read_text())[1].split()
    assert [*other_versions, versions[0]] == versions[::-1]


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_workflows_have_least_permissions_and_pinned_actions(name):
    flow = WORKFLOWS[name]
    assert flow["permissions"] == {"contents": "read"}
    assert "concurrency" in flow
    for job in flow["jobs"].values():
        for step in job.get("steps", []):
            if "uses" in step:
                assert re.search(r"@(v\d+|release/v\d+|[0-9a-f]{40})$", step["uses"]), step
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
    writes = {job for job, content in flow["jobs"].items() if "write" in content.get("permissions", {}).values()}
    assert writes == ({"build", "publish"} if name == "release" else set())


def test_publishing_needs_all_other_jobs():
    assert sorted(RELEASE["publish"]["needs"]) == sorted(RELEASE.keys() - {"publish"})
    assert RELEASE["publish"]["environment"] == "pypi"
    assert RELEASE["tests"]["uses"] == "./.github/workflows/tests.yml"
    assert "workflow_call" in WORKFLOWS["tests"][True]  # YAML reads the key `on` as True


def test_releasing_page_names_existing_files_and_targets():
    page = (ROOT / "docs" / "releasing.md").read_text()
    for name in re.findall(r"[\w./-]+/[\w.-]+\.(?:py|yml)", page):
        assert (ROOT / name).is_file(), name
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)`", page)) <= targets


def test_every_extra_for_users_is_checked():
    uses = set(re.findall(r'^    "(\w+)": """$', (ROOT / "release" / "check_extras.py").read_text(), re.MULTILINE))
    assert uses == PROJECT["project"]["optional-dependencies"].keys() - {
        "benchmark",
        "dev",
        "docs",
        "examples",
        "release",
        "test",
        "thorough",
    }
