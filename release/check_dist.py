"""What is to be published is whole: ``python release/check_dist.py FOLDER``, with wheels and the sdist of both distributions.

The files of the packages are those of the sdist, no others; types, connectors, licence, commands and versions are there; links of
the description lead somewhere from everywhere.
"""

import re
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

PACKAGES = ("streamsvm/", "streamsvm_kafka/", "streamsvm_spark/")
#: The folders and files of the sdist that nobody could do without.
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
#: Whatever makes a distribution larger and helps nobody.
RUBBISH = re.compile(r"__pycache__|\.py[co]$|\.egg-info|/\.(?!gitignore|ci/|github/)")
#: What the wheel of a platform has beside.
MACHINE_CODE = {f"streamsvm/core/compiling/_machine_code.{suffix}" for suffix in ("abi3.so", "json")}
LARGEST_WHEEL = 12_000_000
VERSION = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)


def only(folder: Path, pattern: str) -> Path:
    """Return the file that a pattern finds; AssertionError where it is not one."""
    found = sorted(folder.glob(pattern))
    assert len(found) == 1, f"{pattern}: {found}"
    return found[0]


def metadata(wheel: zipfile.ZipFile, name: str) -> Message:
    """Return the metadata of a wheel, and check what both have."""
    [place] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    found = BytesParser().parsebytes(wheel.read(place))
    assert found["Name"] == name
    assert found["Requires-Python"] == ">=3.11"
    assert found["License-Expression"] == "BSD-3-Clause"
    assert place.replace("METADATA", "licenses/LICENSE") in wheel.namelist()
    version = VERSION.search(wheel.read("streamsvm/__init__.py").decode())
    assert version is not None
    assert version[1] == found["Version"], f"{name} {found['Version']} holds {version[1]}"
    links = re.findall(r"\]\((?!https://|#)([^)\s]+)\)", str(found.get_payload()))
    assert not links, f"{name}: the description links to {links}"
    return found


def main(folder: Path) -> None:
    """Check the distributions; AssertionError says what is wrong."""
    with tarfile.open(only(folder, "streamsvm-*.tar.gz")) as archive:
        sources = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert not (bad := [name for name in sources if RUBBISH.search(f"/{name}")]), bad
    missing = [name for name in SOURCES if not any(known == name or known.startswith(name) for known in sources)]
    assert not missing, f"the sdist lacks {missing}"
    packaged = {name.removeprefix("connectors/") for name in sources if name.startswith(("streamsvm/", "connectors/"))}

    with zipfile.ZipFile(only(folder, "streamsvm-*-cp311-abi3-*.whl")) as wheel:
        of_platform = {name for name in wheel.namelist() if ".dist-info/" not in name and not name.endswith("/")}
        metadata(wheel, "streamsvm")
    assert (size := only(folder, "streamsvm-*-cp311-abi3-*.whl").stat().st_size) <= LARGEST_WHEEL, f"{size:,} bytes"
    with zipfile.ZipFile(only(folder, "streamsvm-*-py3-none-any.whl")) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        assert names == packaged, sorted(names ^ packaged)
        assert all(name.startswith(PACKAGES) for name in names)
        assert of_platform - names == MACHINE_CODE, of_platform ^ names
        assert names <= of_platform
        assert {f"{package}py.typed" for package in PACKAGES} <= names
        whole = metadata(wheel, "streamsvm")
        [commands] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
        assert b"streamsvm = streamsvm.__main__:main" in wheel.read(commands)

    with zipfile.ZipFile(only(folder, "streamsvm_edge-*.whl")) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        wanted = {name for name in packaged if name.startswith("streamsvm/edge/")} | {
            f"streamsvm/files/{name}.py" for name in ("__init__", "category_names", "container")
        }
        assert names == wanted | {"streamsvm/__init__.py", "streamsvm/py.typed"}, sorted(names)
        part = metadata(wheel, "streamsvm-edge")
    assert part["Version"] == whole["Version"]
    print(f"streamsvm {whole['Version']}: {len(packaged)} files of packages, {len(sources)} of sources; streamsvm-edge alike")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
