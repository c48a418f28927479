"""Models as bytes, and back."""

from pathlib import Path

from streamsvm.files.container import unpack
from streamsvm.files.model_file import parts_of, to_bytes


def dumps(model, trusted=False):
    return to_bytes({"model": model}, {}, trusted)


def loads(data, trusted=False):
    return parts_of(Path("bytes"), unpack(data), trusted)["model"]
