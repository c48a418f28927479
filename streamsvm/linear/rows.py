"""Writing block files from streams of pairs of features and a label, as in river."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from streamsvm.core.checks import Overflow, check_number, check_one_of, validate_weight
from streamsvm.core.memory.features import OVERFLOW_POLICIES, FeatureSpace
from streamsvm.core.progress import show_rows
from streamsvm.linear.block_file import LabelEncoder, get_storable_names
from streamsvm.linear.block_writer import DEFAULT_MEMORY_BYTES, open_shuffling_writer, plan_memory
from streamsvm.stream.tables.chunk import BadRow


def write_rows(
    rows: Iterable[tuple[Mapping[Any, Any], Any] | tuple[Mapping[Any, Any], Any, float]],
    path: str | Path,
    *,
    max_features: int = 10_000,
    overflow: Overflow = "raise",
    memory_limit: float = DEFAULT_MEMORY_BYTES,
    verbose: bool = False,
) -> tuple[int, int]:
    """Write the rows of a finite stream, pairs of a dictionary of features and a label, to a block file (training rows in binary
    form), to which linear machines can be fitted. Return the numbers of rows and features.

    The stream may be a river dataset, a file, or a bounded pass over a Kafka topic.

    Parameters
    ----------
    rows
        Pairs of features and a label, as river's datasets and the sources of `streamsvm.stream` and `streamsvm_kafka` yield them;
        or triples, whose third item is a weight of at least 0. Rows without a label (None) and rows of weight 0 are skipped.
    path
        Path of the block file. It appears when it is complete.
    max_features
        Maximum number of feature names. Features get columns in order of their first occurrence.
    overflow
        Treatment of names beyond the maximum, as in `OnlineLinearSVC`: ``"raise"``, ``"hash"`` or ``"ignore"``.
    memory_limit
        Maximum memory in bytes, as in `write_blocks`, on top of the memory for the names of features.
    verbose
        Whether to show the number of rows read so far on standard error.

    Returns
    -------
    tuple of int
        Number of rows and of features.

    Raises
    ------
    ValueError
        A row is invalid; the message names the row and the reason. The unfinished file is removed.
    OSError
        The disk is full.

    Examples
    --------
    >>> import tempfile
    >>> from river import datasets
    >>> from streamsvm.linear import OutOfCoreLinearSVC, write_rows

    >>> path = Path(tempfile.mkdtemp(), "rows.blocks")
    >>> write_rows(datasets.Phishing(), path)
    (1250, 9)
    >>> model = OutOfCoreLinearSVC().fit_file(path)
    >>> list(model.feature_names_in_[:2])
    ['age_of_domain', 'anchor_from_other_domain']
    """
    check_number("max_features", max_features, 1, inclusive=True, integer=True)
    check_one_of("overflow", overflow, OVERFLOW_POLICIES)
    chunk_bytes, space, encoder = plan_memory(memory_limit).block_bytes, FeatureSpace(max_features, overflow), LabelEncoder()
    rows = iter(rows)
    first = next(rows, None)
    weighted = isinstance(first, tuple | list) and len(first) == 3 and not isinstance(first, BadRow)
    with (
        show_rows("reading rows", verbose) as advance,
        open_shuffling_writer(Path(path), dense=False, weighted=weighted, block_bytes=chunk_bytes, memory=memory_limit) as writer,
    ):
        buffer: list[tuple[np.ndarray, np.ndarray, float, float]] = []  # columns, values, label and weight of each row
        buffered_bytes = 0  # approximately

        def write_buffer() -> None:
            columns, values, labels, weights = zip(*buffer, strict=True)
            parts = (np.concatenate(values), np.concatenate(columns), np.cumsum([0, *map(len, values)]))
            X = sparse.csr_array(parts, shape=(len(buffer), max(len(space), 1)))
            writer.add(X, np.array(labels), weights=np.array(weights) if weighted else None)
            advance(writer.shape[0])
            buffer.clear()

        for number, item in enumerate([] if first is None else itertools.chain([first], rows)):
            if isinstance(item, BadRow):
                raise ValueError(f"row {number:,}: {item.place}: {item.reason}")
            if len(item) != 2 + weighted:
                raise ValueError(f"row {number:,} has {len(item)} parts, but the first row has {2 + weighted}")
            x, y, *rest = item
            if y is None:
                continue
            try:
                weight = validate_weight(rest[0]) if rest else 1.0
                if weight == 0.0:
                    continue
                columns, row = space.make_sparse_row(x, learn=True)
                if not np.isfinite(row).all():
                    space.raise_for_row(x)
                label = encoder.encode_label(y)
            except ValueError as error:
                raise ValueError(f"row {number:,}: {error}") from None
            buffer.append((columns[columns >= 0], row[columns >= 0], label, weight))
            buffered_bytes += 12 * len(row) + 300  # including two array objects
            if buffered_bytes > chunk_bytes:
                write_buffer()
                buffered_bytes = 0
        if buffer:
            write_buffer()
        if not writer.shape[0]:
            raise ValueError("no rows have a label" + (" and a weight above 0" if weighted else ""))
        is_hashed = overflow == "hash" and len(space.names) == max_features  # several names may then share a column
        writer.meta = {"names": None if is_hashed else get_storable_names(space.names), **encoder.meta}
    return writer.shape
