"""Rows of sources, and the positions between them."""

import json

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
