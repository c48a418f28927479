"""Asks pyright whether all public names have a declared type: python tests/public_types.py.

Subclasses of scikit-learn's classes are excepted, but not their members: scikit-learn has no types, and a subclass of an untyped
class counts as unknown.
"""

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

PACKAGES = ("streamsvm", "streamsvm_kafka")


def unknown_names(package):
    """Return the public names of an installed package whose type is unknown, or ambiguous for type checkers."""
    command = ["pyright", "--outputjson", "--ignoreexternal", "--verifytypes", package]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # pyright uses the first Python in PATH
    answer = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    report = json.loads(answer.stdout)
    symbols = report["typeCompleteness"]["symbols"]
    assert len(symbols) > 100, f"{package} is not there"
    unknown = (symbol for symbol in symbols if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"])
    return [symbol["name"] for symbol in unknown if not is_below_sklearn(symbol)]


def is_below_sklearn(symbol):
    """Return whether a class is unknown only because one of its base classes is scikit-learn's."""
    if symbol["category"] != "class" or any("class" not in diagnostic["message"] for diagnostic in symbol["diagnostics"]):
        return False
    return any(base.__module__.startswith("sklearn.") for base in pkgutil.resolve_name(symbol["name"]).__mro__)


if __name__ == "__main__":
    names = [name for package in PACKAGES for name in unknown_names(package)]
    sys.exit("\n".join(["public names without a known type (pyright --verifytypes says why):", *names]) if names else 0)
