"""Learners on their way to other processes: as the bytes of a model file, of which nothing can run."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from streamsvm.files.model_file import to_bytes
from streamsvm.stream.checkpoint import checkpoint_of


def bytes_of(learner: Any) -> bytes:
    """Return a learner as the bytes of a model file."""
    return to_bytes({"model": learner}, {"kind": "model"})


def learner_of(file: bytes, place: str = "the model") -> Any:
    """Return the learner that such bytes hold, which may be changed; messages name the place."""
    return checkpoint_of(file, place).model


@lru_cache(maxsize=4)
def shared_learner_of(file: bytes) -> Any:
    """Return the learner that such bytes hold, to be read only: a process makes it once."""
    return learner_of(file)
