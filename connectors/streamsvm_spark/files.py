"""Parquet files that the workers read by Arrow themselves, without Spark's rows in between."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import fs, parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

from streamsvm_spark.columns import RowsError, floats_of
from streamsvm_spark.versions import check_workers

_BATCH = 10_000  # rows
_VALUES = 2**23  # of all columns, in a batch
_BUFFER = 2**20  # bytes of a column that are read at once: a column of a large row group is not held whole
_ANEW = "has been written anew since the fit began: fit once more"
_THREADS = 8  # that read the ends of files at once
_PARTITION_BYTES = 2**27  # of a partition, uncompressed, if there are more of them than cores; Spark takes as many


class Piece(NamedTuple):
    """A row group of a file."""

    path: str  # in its file system
    size: int  # the bytes of the file, which is refused where it has others
    group: int
    rows: int
    bytes: int


class Files:
    """The rows of Parquet files, in partitions of whole row groups, in the order of the names of the files.

    `BudgetedSVMClassifier.fitParquet` describes ``path`` and ``partitions``. ``columns`` has the names of columns that are read,
    by what they are given out as; what is given out as features may be several.

    The driver reads the end of each file, where it says what is in it; a worker reads its row groups, and of these the columns
    that are asked for. A file that has another size then is refused: it was written anew meanwhile.
    """

    def __init__(self, path: str, columns: dict[str, str | Sequence[str]], partitions: int | None = None) -> None:
        self._spark = SparkSession.active()
        self._columns = columns
        self._url = str(path)
        names = _names_of(columns)
        system, root = _system_of(self._url)
        paths = _paths_and_sizes(system, root, self._url)
        with ThreadPoolExecutor(_THREADS) as threads:
            pieces = [
                piece
                for found in threads.map(lambda one: _pieces_of_file(system, one[0], one[1], names), paths)
                for piece in found
            ]
        if not pieces:
            raise ValueError(f"the Parquet files in {path} have no rows")
        if partitions is None:
            if is_remote():
                raise ValueError("a session of Spark Connect does not say how many cores there are: give partitions")
            cores = self._spark.sparkContext.defaultParallelism
            partitions = cores * max(-(-sum(piece.bytes for piece in pieces) // (cores * _PARTITION_BYTES)), 1)
        if partitions < 1:
            raise ValueError(f"partitions must be at least 1, not {partitions}")
        self.partitions = _partitions_of(pieces, partitions)

    def mapped(self, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: StructType | str) -> DataFrame:
        """Return what a task makes of the batches of each partition."""
        url, partitions, columns = self._url, self.partitions, self._columns

        def of_partition(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:  # one row, the number of the partition
                for number in batch.column(0).to_pylist():
                    yield from task(_read_batches(url, partitions[number], columns))

        check_workers(self._spark)
        n = len(self.partitions)
        return self._spark.range(0, n, 1, n).mapInArrow(of_partition, schema)

    def schema(self, names: Sequence[str]) -> pa.Schema:
        """Return the types of columns of the files, as the first of them has them."""
        system, _ = _system_of(self._url)
        with system.open_input_file(self.partitions[0][0].path) as file:
            found = parquet.ParquetFile(file).schema_arrow
        return pa.schema([found.field(name) for name in names])


def _names_of(columns: dict[str, str | Sequence[str]]) -> list[str]:
    return [name for names in columns.values() for name in ([names] if isinstance(names, str) else names)]


def _system_of(url: str) -> tuple[fs.FileSystem, str]:
    if "://" not in url:
        return fs.LocalFileSystem(), str(Path(url.removeprefix("file:")).absolute())
    try:
        system, root = fs.FileSystem.from_uri(url)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(
            f"{url} is in no file system that Arrow reads ({error}): read it with Spark, and fit the frame"
        ) from error
    return system, root


def _paths_and_sizes(system: fs.FileSystem, root: str, url: str) -> list[tuple[str, int]]:
    [top] = system.get_file_info([root])
    if top.type == fs.FileType.NotFound:
        raise ValueError(f"there is no {url}")
    if top.type == fs.FileType.File:
        return [(top.path, top.size)]
    if isinstance(system, fs.LocalFileSystem):
        files = sorted(_local_paths(root, ()))
    else:
        below = system.get_file_info(fs.FileSelector(root, recursive=True))
        start = len(top.path.rstrip("/")) + 1
        hidden = (any(map(_is_hidden, info.path[start:].split("/"))) for info in below)
        files = sorted((info.path, info.size) for info, hide in zip(below, hidden, strict=True) if info.is_file and not hide)
    if not files:
        raise ValueError(f"there is no file in {url}")
    return files


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))


def _local_paths(folder: str, above: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    # Through links, which Arrow would follow round and round: each file there again, under another name.
    above = (*above, os.path.realpath(folder))
    with os.scandir(folder) as entries:
        for entry in entries:
            if _is_hidden(entry.name):
                continue
            if entry.is_dir():
                if os.path.realpath(entry.path) in above:
                    raise ValueError(f"{entry.path} is a link to a folder that it is in: files there have no end")
                yield from _local_paths(entry.path, above)
            elif entry.is_file():
                yield entry.path, entry.stat().st_size
            elif entry.is_symlink() and not Path(entry.path).exists():
                raise ValueError(f"{entry.path} is a link to nothing: rows are missing")


def _pieces_of_file(system: fs.FileSystem, path: str, size: int, names: Sequence[str]) -> list[Piece]:
    try:
        with system.open_input_file(path) as file:
            metadata = parquet.ParquetFile(file).metadata
            held = metadata.schema.to_arrow_schema().names
            groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    except pa.ArrowException as error:
        raise ValueError(f"{path} is no Parquet file: {error}") from error
    except OSError as error:  # also of an end that is corrupt
        raise ValueError(f"{path} cannot be read: {error}") from error
    if twice := [name for name in names if held.count(name) > 1]:
        raise ValueError(f"{path} has {held.count(twice[0])} columns {twice[0]!r}: give them different names")
    if missing := [name for name in names if name not in held]:
        raise ValueError(f"{path} has no column {missing[0]!r}: it has {', '.join(held)}")
    return [Piece(path, size, i, group.num_rows, group.total_byte_size) for i, group in enumerate(groups) if group.num_rows]


def _partitions_of(pieces: Sequence[Piece], n: int) -> list[list[Piece]]:
    """Return pieces, in their order, in up to so many partitions of about as many rows."""
    ends = np.array(list(accumulate(piece.rows for piece in pieces)), np.float64)
    middles = ends - 0.5 * np.array([piece.rows for piece in pieces])
    places = np.minimum((middles * n / ends[-1]).astype(int), n - 1)
    starts = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), len(pieces)]
    return [list(pieces[begin:end]) for begin, end in pairwise(starts)]


def _read_batches(url: str, pieces: Sequence[Piece], columns: dict[str, str | Sequence[str]]) -> Iterator[pa.RecordBatch]:
    system, _ = _system_of(url)
    names = list(dict.fromkeys(_names_of(columns)))
    for piece in pieces:
        with system.open_input_file(piece.path) as file:
            if file.size() != piece.size:
                raise RowsError(f"{piece.path} {_ANEW}")
            for batch in _read_group(file, piece, names):
                arrays = [_batch_with_names(batch, names_of) for names_of in columns.values()]
                yield pa.RecordBatch.from_arrays(arrays, list(columns))


def _read_group(file: Any, piece: Piece, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a row group, of wide columns fewer at once. Of what is corrupt, the error names the file."""
    try:
        found = parquet.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER, page_checksum_verification=True)
        group = found.metadata.row_group(piece.group) if piece.group < found.num_row_groups else None
        if group is None or (group.num_rows, group.total_byte_size) != (piece.rows, piece.bytes):
            raise RowsError(f"{piece.path} {_ANEW}")
        columns = [group.column(i) for i in range(group.num_columns)]
        values = sum(column.num_values for column in columns if _is_of(column.path_in_schema, names))
        most = min(max(_VALUES * piece.rows // max(values, 1), 1), _BATCH)
        yield from found.iter_batches(most, [piece.group], names, use_threads=False)
    except pa.ArrowException as error:
        raise RowsError(f"{piece.path} cannot be read, in row group {piece.group}: {error}") from error
    except OSError as error:  # which may pass: Spark tries it again
        raise OSError(f"{piece.path} cannot be read, in row group {piece.group}: {error}") from error


def _is_of(path: str, names: Sequence[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in names)


def _batch_with_names(batch: pa.RecordBatch, names: str | Sequence[str]) -> pa.Array:
    if isinstance(names, str):
        return batch.column(names)
    values = np.empty((len(batch), len(names)), np.float32)
    for place, name in enumerate(names):
        column = batch.column(name)
        with np.errstate(over="ignore"):
            values[:, place] = floats_of(column, f"the feature {name!r}")
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), len(names))
