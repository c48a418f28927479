"""Models as bytes, and back."""

from streamsvm.files.container import unpack
from streamsvm.files.model_file import read_parts, to_bytes


def dumps(model, trusted=False):
    return to_bytes({"model": model}, {}, trusted)


def loads(data, trusted=False):
    return read_parts(unpack(data), trusted)["model"]
