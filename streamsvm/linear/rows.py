"""Block files from streams, as river and the learning loop have them."""

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
from streamsvm.linear.block_file import LabelCodes, names_to_save
from streamsvm.linear.block_writer import DEFAULT_LIMIT, mixing_writer, planned_sizes
from streamsvm.stream.tables.chunk import BadRow


def write_rows(
    rows: Iterable[tuple[Mapping[Any, Any], Any] | tuple[Mapping[Any, Any], Any, float]],
    path: str | Path,
    *,
    max_features: int = 10_000,
    overflow: Overflow = "raise",
    memory_limit: float = DEFAULT_LIMIT,
    verbose: bool = False,
) -> tuple[int, int]:
    """Write the rows of a stream that ends to a block file.

    The stream may be a river dataset, a file, or a bounded pass over a Kafka topic.

    Parameters
    ----------
    rows
        Pairs of features and a label, as river's datasets and the sources of `streamsvm.stream` and `streamsvm_kafka` give
        them; or triples, with a weight of at least 0 at the end. Rows without a label (None) and rows of weight 0 are left out.
    path
        Path of the block file. It appears once all of it is written.
    max_features
        Maximum number of feature names. Features get columns in the order in which rows bring them.
    overflow
        What happens to more names, as in `OnlineLinearSVC`: ``"raise"``, ``"hash"`` or ``"ignore"``.
    memory_limit
        Maximum memory in bytes, as in `write_blocks`, on top of the memory for the names of features.
    verbose
        Whether to show the number of rows so far on standard error.

    Returns
    -------
    tuple of int
        Number of rows and of features.

    Raises
    ------
    ValueError
        A row cannot be learned; the message says which one, and why. No file is left.
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
    size, space, codes = planned_sizes(memory_limit).block, FeatureSpace(max_features, overflow), LabelCodes()
    rows = iter(rows)
    first = next(rows, None)
    weighted = isinstance(first, tuple | list) and len(first) == 3 and not isinstance(first, BadRow)
    with (
        show_rows("reading rows", verbose) as advance,
        mixing_writer(Path(path), dense=False, weighted=weighted, block_bytes=size, memory=memory_limit) as writer,
    ):
        held: list[tuple[np.ndarray, np.ndarray, float, float]] = []  # columns, values, label and weight of a row
        waiting = 0  # bytes, about

        def write() -> None:
            columns, values, labels, weights = zip(*held, strict=True)
            parts = (np.concatenate(values), np.concatenate(columns), np.cumsum([0, *map(len, values)]))
            X, some = sparse.csr_array(parts, shape=(len(held), max(len(space), 1))), np.array(weights) if weighted else None
            writer.add(X, np.array(labels), weights=some)
            advance(writer.shape[0])
            held.clear()

        for number, given in enumerate([] if first is None else itertools.chain([first], rows)):
            if isinstance(given, BadRow):
                raise ValueError(f"row {number:,}: {given.place}: {given.reason}")
            if len(given) != 2 + weighted:
                raise ValueError(f"row {number:,} has {len(given)} parts, and the first row has {2 + weighted}")
            x, y, *rest = given
            if y is None:
                continue
            try:
                weight = validate_weight(rest[0]) if rest else 1.0
                if weight == 0.0:
                    continue
                places, row = space.make_sparse_row(x, learn=True)
                if not np.isfinite(row).all():
                    space.raise_for_row(x)
                label = codes.code(y)
            except ValueError as error:
                raise ValueError(f"row {number:,}: {error}") from None
            held.append((places[places >= 0], row[places >= 0], label, weight))
            waiting += 12 * len(row) + 300  # with the objects of two arrays
            if waiting > size:
                write()
                waiting = 0
        if held:
            write()
        if not writer.shape[0]:
            raise ValueError("there are no rows with a label" + (" and a weight above 0" if weighted else ""))
        is_hashed = overflow == "hash" and len(space.names) == max_features  # a column may then stand for several names
        writer.meta = {"names": None if is_hashed else names_to_save(space.names), **codes.meta}
    return writer.shape
