"""A call of the command line."""

from types import SimpleNamespace

import pytest

from command_words import main


@pytest.fixture
def call(capfd):
    """Calls the command line in this process, with `with_a_model`."""

    def run(*words):
        capfd.readouterr()
        try:
            status = main(words)
        except SystemExit as left:
            status = left.code
        output, errors = capfd.readouterr()
        return SimpleNamespace(returncode=status, stdout=output, stderr=errors)

    return run
