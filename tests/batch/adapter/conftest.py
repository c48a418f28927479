"""Fixtures for the tests of batch adapters."""

import pytest

from adapters import Majority
from streamsvm.batch import batch_adapter


@pytest.fixture
def majority(monkeypatch):
    monkeypatch.setattr(Majority, "n_calls", 0)
    return batch_adapter(Majority(), window=10, refit_every=5, standardize=False)
