"""A call of the command line."""

from types import SimpleNamespace

import pytest

from streamsvm.cli.main import main


@pytest.fixture
def call(capfd):
    """Calls the command line in this process."""

    def run(*words):
        capfd.readouterr()
        try:
            status = main([*map(str, words)])
        except SystemExit as left:
            status = left.code
        output, errors = capfd.readouterr()
        return SimpleNamespace(returncode=status, stdout=output, stderr=errors)

    return run
