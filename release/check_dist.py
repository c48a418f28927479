"""Checks distributions before they are published: ``python release/check_dist.py FOLDER``, with wheels and sdist of both
distributions.

Wheels contain the same package files as the sdist, and no others; types, connectors, licence, commands and versions are there;
links of the description are absolute.
"""

import re
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

PACKAGES = ("streamsvm/", "streamsvm_kafka/", "streamsvm_spark/")
#: Folders and files that the sdist must contain.
SOURCES = [
    *("CHANGELOG.md", "CITATION.cff", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "SECURITY.md"),
    *(
        ".ci/",
        ".github/",
        "benchmarks/",
        "conftest.py",
        "connectors/",
        "deploy/",
        "docs/",
        "examples/",
        "pyproject.toml",
        "release/",
    ),
    *("edge/LICENSE", "edge/README.md", "edge/pyproject.toml", "streamsvm/", "tests/"),
]
#: Files that must not be in a distribution.
UNWANTED = re.compile(r"__pycache__|\.py[co]$|\.egg-info|/\.(?!gitignore|ci/|github/)")
#: Additional files of the wheel of a platform.
MACHINE_CODE = {f"streamsvm/core/compiling/_machine_code.{suffix}" for suffix in ("abi3.so", "json")}
MAX_WHEEL_BYTES = 12_000_000
VERSION = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)


def find_only(folder: Path, pattern: str) -> Path:
    """Return the only file that matches a pattern; AssertionError if there is not exactly one."""
    paths = sorted(folder.glob(pattern))
    assert len(paths) == 1, f"{pattern}: {paths}"
    return paths[0]


def read_metadata(wheel: zipfile.ZipFile, name: str) -> Message:
    """Return the metadata of a wheel, after checking what both distributions share."""
    [path] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    message = BytesParser().parsebytes(wheel.read(path))
    assert message["Name"] == name
    assert message["Requires-Python"] == ">=3.11"
    assert message["License-Expression"] == "BSD-3-Clause"
    assert path.replace("METADATA", "licenses/LICENSE") in wheel.namelist()
    version = VERSION.search(wheel.read("streamsvm/__init__.py").decode())
    assert version is not None
    assert version[1] == message["Version"], f"{name} {message['Version']} holds {version[1]}"
    links = re.findall(r"\]\((?!https://|#)([^)\s]+)\)", str(message.get_payload()))
    assert not links, f"{name}: the description links to {links}"
    return message


def main(folder: Path) -> None:
    """Check the distributions; an AssertionError describes the first problem."""
    with tarfile.open(find_only(folder, "streamsvm-*.tar.gz")) as archive:
        sources = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert not (bad := [name for name in sources if UNWANTED.search(f"/{name}")]), bad
    missing_sources = [name for name in SOURCES if not any(path == name or path.startswith(name) for path in sources)]
    assert not missing_sources, f"the sdist lacks {missing_sources}"
    packaged = {name.removeprefix("connectors/") for name in sources if name.startswith(("streamsvm/", "connectors/"))}

    with zipfile.ZipFile(find_only(folder, "streamsvm-*-cp311-abi3-*.whl")) as wheel:
        platform_names = {name for name in wheel.namelist() if ".dist-info/" not in name and not name.endswith("/")}
        read_metadata(wheel, "streamsvm")
    assert (size := find_only(folder, "streamsvm-*-cp311-abi3-*.whl").stat().st_size) <= MAX_WHEEL_BYTES, f"{size:,} bytes"
    with zipfile.ZipFile(find_only(folder, "streamsvm-*-py3-none-any.whl")) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        assert names == packaged, sorted(names ^ packaged)
        assert all(name.startswith(PACKAGES) for name in names)
        assert platform_names - names == MACHINE_CODE, platform_names ^ names
        assert names <= platform_names
        assert {f"{package}py.typed" for package in PACKAGES} <= names
        metadata = read_metadata(wheel, "streamsvm")
        [commands] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
        assert b"streamsvm = streamsvm.__main__:main" in wheel.read(commands)

    with zipfile.ZipFile(find_only(folder, "streamsvm_edge-*.whl")) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        expected = {name for name in packaged if name.startswith("streamsvm/edge/")} | {
            f"streamsvm/files/{name}.py" for name in ("__init__", "category_names", "characters", "container")
        }
        assert names == expected | {"streamsvm/__init__.py", "streamsvm/py.typed"}, sorted(names)
        edge_metadata = read_metadata(wheel, "streamsvm-edge")
    assert edge_metadata["Version"] == metadata["Version"]
    print(f"streamsvm {metadata['Version']}: {len(packaged)} files of packages, {len(sources)} of sources; streamsvm-edge alike")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
