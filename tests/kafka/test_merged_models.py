"""Merged models in a model topic."""

import uuid

import pytest

from command_words import main
from partition_models import save
from streamsvm.stream.open import open_models


@pytest.mark.broker
def test_merged_models_go_to_a_topic_that_followers_read(bootstrap, tmp_path):
    url = f"kafka://{bootstrap}/models-{uuid.uuid4().hex}"
    for number in range(2):
        save(tmp_path / "state" / f"partition-{number}", 100, number, label="y")
    assert main(["merge", tmp_path / "state", "--to", url]) == 0
    models = open_models(url, source=None)
    assert models.wait().header["rows"] == 200
    save(tmp_path / "state" / "partition-1", 150, 1, label="y")
    assert main(["merge", tmp_path / "state", "--to", url]) == 0
    assert models.read().header["parts"] == {"partition-0": 100, "partition-1": 150}
    models.close()
