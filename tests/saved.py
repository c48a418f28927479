"""Models as bytes, and back."""

from streamsvm.files.container import unpack_container
from streamsvm.files.model_file import read_parts, serialize_parts


def dumps(model, trusted=False):
    return serialize_parts({"model": model}, {}, trusted)


def loads(data, trusted=False):
    return read_parts(unpack_container(data), trusted)["model"]
