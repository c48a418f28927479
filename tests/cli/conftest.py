"""Files of rows for the command line."""

import pytest
from river import datasets


@pytest.fixture
def file(tmp_path):
    """Writes a file of lines of text."""

    def write(name, *lines):
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    return write


@pytest.fixture
def bananas(file):
    """Returns a function that writes a CSV of n rows ``a,b,y`` with the given label names."""

    def write(n=5300, labels=(False, True), name="bananas.csv"):
        return file(name, "a,b,y", *(f"{x['1']!r},{x['2']!r},{labels[y]}" for x, y in datasets.Bananas().take(n)))

    return write


@pytest.fixture
def rows(file):
    return file("rows.csv", "a,b,y", *(f"{i % 7},{i % 5},{i % 2}" for i in range(60)))
