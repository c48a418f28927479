"""Rows of sources, and the positions between them."""

import json

from chunks import chunks_of
from streamsvm.stream import open_source


def read(path, position=None, label="y", **options):
    """The rows of a file from a position on, and the positions before the first and after each, as a checkpoint has them."""
    with open_source(str(path), label=label, **options) as source:
        if position is not None:
            source.seek(position)
        rows, positions = [], [source.position]
        for row in source:
            rows.append(row)
            positions.append(source.position)
    return rows, json.loads(json.dumps(positions))


def read_chunks(source, most=1):
    """The rows of a source, their places, and the positions before the first chunk and after each, as a checkpoint has them."""
    rows, places, positions = [], [], [source.position]
    with source:
        assert source.request_passthrough([]) == []
        for chunk in chunks_of(source, most):
            assert len(chunk) <= most
            rows += [chunk.row(i) for i in range(len(chunk))]
            places += [chunk.place(i) for i in range(len(chunk))]
            positions.append(source.position)
        assert source.read(most) is None
    return rows, places, json.loads(json.dumps(positions))
