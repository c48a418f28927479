"""Tables in files, read by pyarrow a chunk at a time: CSV, Parquet and Arrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from streamsvm.files.messages import missing_package
from streamsvm.linear.names import LabelCodes
from streamsvm.stream.rows import parse_label

_KINDS = {".csv": "csv", ".csv.gz": "csv", ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}


def kind_of(source: Path) -> str | None:
    """Return the format of a table, by the name of the file; None where it is no table."""
    name = source.name.lower()
    return next((kind for end, kind in _KINDS.items() if name.endswith(end)), None)


def chunks(
    source: Path, target: str | None, weight: str | None, size: int, codes: LabelCodes
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None, list[str]]]:
    """Yield rows float64 [n, features], labels float64 [n], weights float64 [n] and the names of the features.

    Chunks have about ``size`` bytes. ``weight`` is the column of weights; None: there are none.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - of an extra
    except ImportError as error:
        raise missing_package(f"{source}: a table", "pyarrow", "files", error) from error
    rows = 0
    try:
        for batch in _batches(source, target, size):
            names = batch.schema.names
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise ValueError(f"{source} has the column {twice[0]!r} more than once: give each column another name")
            if target not in names:
                known = ", ".join(names[:8])
                raise ValueError(f"{source} has no column {target!r}: name the column of labels with target=, one of {known}")
            if weight is not None and (weight == target or weight not in names):
                raise ValueError(f"{source} has no column {weight!r} of weights beside that of labels: name it with weight=")
            features = [name for name in names if name not in (target, weight)]
            columns = [_numbers(batch.column(name), f"{source}, column {name!r}", rows) for name in features]
            if not columns:
                raise ValueError(f"{source} has no column but {target!r}" + (f" and {weight!r}" if weight else ""))
            labels = _labels(batch.column(target), codes, f"{source}, column {target!r}", rows)
            yield np.column_stack(columns), labels, _weights(batch, weight, source, rows), features
            rows += len(labels)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        short = " (a row must be shorter than a sixteenth of memory_limit)" if "block" in str(error) else ""
        raise ValueError(f"{source}: {error}{short}") from error


def _batches(source: Path, target: str | None, size: int) -> Iterator[Any]:
    import pyarrow as pa  # noqa: PLC0415

    kind = kind_of(source)
    if kind == "csv":
        from pyarrow import csv  # noqa: PLC0415

        reading = csv.ReadOptions(block_size=max(size, 2**14), use_threads=False)
        with csv.open_csv(source, reading) as reader:
            names = reader.schema.names
        # Types are given: pyarrow would take those of the first block, where numbers may happen to be whole.
        types = {name: pa.float64() for name in names if name != target}
        if target in names:
            types[target] = pa.string()
        with csv.open_csv(source, reading, convert_options=csv.ConvertOptions(column_types=types)) as reader:
            yield from reader
    elif kind == "parquet":
        from pyarrow import parquet  # noqa: PLC0415

        with parquet.ParquetFile(source) as file:
            at_once = max(size // (8 * max(len(file.schema_arrow.names), 1)), 1)
            yield from file.iter_batches(batch_size=at_once, use_threads=False)
    else:
        with pa.memory_map(str(source)) as mapped, pa.ipc.open_file(mapped) as file:
            at_once = max(size // (8 * max(len(file.schema.names), 1)), 1)
            for number in range(file.num_record_batches):
                batch = file.get_batch(number)
                for begin in range(0, batch.num_rows, at_once):
                    yield batch.slice(begin, at_once)


def _numbers(column: Any, where: str, rows: int) -> np.ndarray:
    import pyarrow as pa  # noqa: PLC0415

    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)):
        raise ValueError(f"{where} is of {column.type}, not of numbers: encode it or leave it out")
    if column.null_count:
        missing = rows + int(np.argmax(np.asarray(column.is_null())))
        raise ValueError(f"{where} has no value in row {missing:,}: impute it or leave the row out")
    numbers = np.asarray(column.cast(pa.float64()))
    with np.errstate(over="ignore"):
        finite = np.isfinite(numbers.astype(np.float32))
    if not finite.all():
        row = int(np.argmin(finite))
        raise ValueError(f"{where} is {numbers[row]:g} in row {rows + row:,}, which is not finite in float32: impute or scale it")
    return numbers


def _weights(batch: Any, weight: str | None, source: Path, rows: int) -> np.ndarray | None:
    if weight is None:
        return None
    where = f"{source}, column {weight!r}"
    weights = _numbers(batch.column(weight), where, rows)
    if (weights < 0.0).any():
        row = int(np.argmax(weights < 0.0))
        raise ValueError(f"{where} is {weights[row]:g} in row {rows + row:,}, and a weight is at least 0")
    return weights


def _number(text: str | None) -> float | str | None:
    # A number as the sources of streams see it: text such as 007 is a name there.
    found = parse_label(text or "")
    return found if isinstance(found, int | float) and not isinstance(found, bool) else text


def _labels(column: Any, codes: LabelCodes, where: str, rows: int) -> np.ndarray:
    import pyarrow as pa  # noqa: PLC0415

    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_dictionary(column.type)):
        return _numbers(column, where, rows)
    found = column.to_pylist()
    if not codes.meta:  # where names came before, everything is a name
        numbers = [_number(label) for label in found]
        if codes.numbers or all(isinstance(number, int | float) for number in numbers):
            found = numbers
    labels = np.empty(len(found))
    for row, label in enumerate(found):
        try:
            labels[row] = codes.code(label)
        except ValueError as error:
            raise ValueError(f"{where}, row {rows + row:,}: {error}") from None
    return labels
