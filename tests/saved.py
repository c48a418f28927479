"""Models as bytes, and back."""

from pathlib import Path

from streamsvm.edge.container import unpack
from streamsvm.storage.model_file import parts_of, to_bytes


def dumps(model, trusted=False):
    return to_bytes({"model": model}, {}, trusted)


def loads(data, trusted=False):
    return parts_of(Path("bytes"), unpack(data), trusted)["model"]
