"""Asks pyright whether all public names have a declared type: python tests/public_types.py.

Classes below scikit-learn's are excepted, but not what is in them: scikit-learn has no types, and a class below one without types
counts as unknown.
"""

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

PACKAGES = ("streamsvm", "streamsvm_kafka")


def unknown_names(package):
    """Return the public names of an installed package whose type is not known, or not the same to all checkers."""
    command = ["pyright", "--outputjson", "--ignoreexternal", "--verifytypes", package]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # pyright asks the first Python there
    answer = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    found = json.loads(answer.stdout)
    symbols = found["typeCompleteness"]["symbols"]
    assert len(symbols) > 100, f"{package} is not there"
    unknown = (symbol for symbol in symbols if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"])
    return [symbol["name"] for symbol in unknown if not is_below_sklearn(symbol)]


def is_below_sklearn(symbol):
    """Return whether the class is unknown for its base classes alone, of which one is scikit-learn's."""
    if symbol["category"] != "class" or any("class" not in each["message"] for each in symbol["diagnostics"]):
        return False
    return any(base.__module__.startswith("sklearn.") for base in pkgutil.resolve_name(symbol["name"]).__mro__)


if __name__ == "__main__":
    names = [name for package in PACKAGES for name in unknown_names(package)]
    sys.exit("\n".join(["public names without a known type (pyright --verifytypes says why):", *names]) if names else 0)
