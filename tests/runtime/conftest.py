"""A model and a folder for its checkpoints."""

import pytest

import checkpoints
from streamsvm.runtime import CheckpointFolder


@pytest.fixture(scope="module")
def model():
    return checkpoints.learned()


@pytest.fixture
def folder(tmp_path):
    with CheckpointFolder(tmp_path / "state") as folder:
        yield folder
