"""Files that somebody has put together by hand, with a checksum that is right."""

import json

import numpy as np

from streamsvm.files.container import pack_container, unpack_container


def put_together(path, records=(), root=None, arrays=(), facts=None):
    """A file with these records; the model is the root."""
    records = [*records, ["dict", [["model", root], ["metric", None]]]]
    tree = json.dumps({"records": records, "root": {"ref": len(records) - 1}}).encode()
    return repacked(path, tree, {str(i): array for i, array in enumerate(arrays)}, facts)


def repacked(path, tree, arrays, facts=None):
    text = json.dumps({"rows": 1, "position": {}} if facts is None else facts)
    path.write_bytes(pack_container({"tree": np.frombuffer(tree, np.uint8), **arrays}, {"metadata": text}))
    return path


def taken_apart(path):
    """The tree of a file, and its other arrays by their names."""
    arrays = dict(unpack_container(path.read_bytes()).arrays)
    return json.loads(arrays.pop("tree").tobytes()), arrays
