"""Writing block files from LIBSVM text, with optional weights, and from CSV, Parquet and Arrow files."""

from __future__ import annotations

import codecs
import gzip
import itertools
import math
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from streamsvm.core.progress import show_bytes, show_rows
from streamsvm.core.text_rows import LARGEST_INDEX, read_sparse
from streamsvm.files.messages import short_repr
from streamsvm.linear.block_file import Block, LabelEncoder, get_storable_names, select_rows
from streamsvm.linear.block_writer import DEFAULT_MEMORY_BYTES, list_output_files, open_shuffling_writer, plan_memory
from streamsvm.stream.arrow import KINDS, ArrowSource
from streamsvm.stream.csv_source import CSVSource
from streamsvm.stream.endpoints import Source, StreamError
from streamsvm.stream.file_names import detect_format
from streamsvm.stream.libsvm_source import parse_libsvm_line
from streamsvm.stream.rows import parse_label
from streamsvm.stream.tables.chunk import BadRow, Chunk, to_float_prefix

_MIN_ROWS_PER_LIMIT = 16  # a row may take at most the memory limit divided by this


def detect_table_format(source: Path) -> str | None:
    """Return the format of a table file, such as "csv" or "parquet", from the ending of its name. Return None for any other file,
    which is then read as LIBSVM text.
    """
    try:
        file_format = detect_format(source.name)
    except StreamError:
        return None
    return file_format if file_format in ("csv", *KINDS) else None


def read_table_chunks(
    source: Path, target: str | None, weight: str | None, memory_limit: float, encoder: LabelEncoder
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None, list[str]]]:
    """Yield chunks of a table file: rows float64 [n, features], labels float64 [n], weights float64 [n] (None without weights),
    and the feature names. ``target`` and ``weight`` are the names of columns; ``encoder`` converts labels to numbers.

    A chunk has at most the bytes of a block, but at least one row.
    """
    is_csv = detect_table_format(source) == "csv"
    try:
        with _CSVWithTextLabels(source, target) if is_csv else ArrowSource(source, target, label_needed=False) as opened:
            all_columns = opened.columns
            if target not in all_columns:
                columns = ", ".join(all_columns[:8])
                raise ValueError(f"{source} has no column {target!r}: name the column of labels with target=, one of {columns}")
            if weight is not None and (weight == target or weight not in all_columns):
                raise ValueError(f"{source} has no column {weight!r} for weights (besides the labels): name it with weight=")
            features = [name for name in all_columns if name not in (target, weight)]
            if not features:
                raise ValueError(f"{source} has no columns except {target!r}" + (f" and {weight!r}" if weight else ""))
            names = features if weight is None else [*features, weight]
            row_bytes = 8 * len(names)
            if row_bytes > memory_limit / _MIN_ROWS_PER_LIMIT:
                raise ValueError(f"{source}: a row takes {row_bytes:,} bytes, more than a sixteenth of memory_limit: raise it")
            for chunks in _gather_chunks(opened, max(plan_memory(memory_limit).block_bytes // row_bytes, 1)):
                parts = [_convert_chunk(chunk, names) for chunk in chunks]
                X, labels = np.concatenate([X for X, _ in parts]), [label for _, labels in parts for label in labels]
                weights = None if weight is None else X[:, -1]
                if weights is not None and (weights < 0.0).any():
                    row = int(np.argmax(weights < 0.0))
                    problem = f"column {weight!r} is {weights[row]:g}, but weights must be at least 0"
                    raise ValueError(f"{_locate_row(chunks, row)}: {problem}")
                yield X[:, : len(features)], _encode_label_values(labels, encoder, chunks), weights, features
    except StreamError as error:
        raise ValueError(str(error)) from error


class _CSVWithTextLabels(CSVSource):
    """A CSV source that reads the header immediately, and returns labels as strings."""

    def __init__(self, path: Path, label: str | None) -> None:
        super().__init__(path, label, label_needed=False)
        try:
            self._start_reading()
        except StreamError:
            self.close()
            raise

    def parse_label_cell(self, text: str) -> str | None:
        return text.strip() or None


def _gather_chunks(source: Source, n_rows: int) -> Iterator[list[Chunk]]:
    """Read rows from ``source``, and yield lists of consecutive chunks that have ``n_rows`` rows in total; the last list may have
    fewer.
    """
    chunks: list[Chunk] = []
    rows = 0
    while (chunk := source.read(n_rows - rows)) is not None:
        chunks.append(chunk)
        rows += len(chunk)
        if rows == n_rows:
            yield chunks
            chunks, rows = [], 0
    if rows:
        yield chunks


def _locate_row(chunks: list[Chunk], row: int) -> str:
    """Return the file and line of a row as text, for error messages. ``row`` is its index among all rows of ``chunks``."""
    chunk, i = [(chunk, i) for chunk in chunks for i in range(len(chunk))][row]
    return chunk.place(i)


def _convert_chunk(chunk: Chunk, names: list[str]) -> tuple[np.ndarray, list[Any]]:
    """Convert the columns ``names`` of a chunk of table rows to numbers, and return them as float64 [n, names] with the list of
    labels. Raise a ValueError that names the row and column if a value is missing or not a number.
    """
    n, table = len(chunk), chunk.table(names) if len(chunk) else None
    X, labels = np.full((n, len(names)), np.nan), [None] * n if table is None or table.y is None else list(table.y)
    for column, name in enumerate(names):
        if table is not None and (values := table.get_column(name)) is not None:
            numbers, count = to_float_prefix(values)
            if count < n:
                raise _make_column_error(chunk, count, name, _describe_non_number(values[count]))
            X[:, column] = numbers
    for i in range(n) if table is None else table.unparsed_rows:
        row = chunk.row(i)
        if isinstance(row, BadRow):
            raise ValueError(f"{row.place}: {row.reason}")
        cells = [row.x.get(name) for name in names]
        numbers, count = to_float_prefix(cells)
        if count < len(cells):
            raise _make_column_error(chunk, i, names[count], _describe_non_number(cells[count]))
        X[i], labels[i] = numbers, row.y
    with np.errstate(over="ignore"):
        finite = np.isfinite(X.astype(np.float32))
    if not finite.all():
        i, column = map(int, np.argwhere(~finite)[0])
        overflow = f"is {X[i, column]:g}, which is not finite in float32: impute or scale it"
        missing = "has no value: impute it or leave the row out"
        raise _make_column_error(chunk, i, names[column], missing if np.isnan(X[i, column]) else overflow)
    return X, labels


def _make_column_error(chunk: Chunk, row: int, column: str, problem: str) -> ValueError:
    return ValueError(f"{chunk.place(row)}: column {column!r} {problem}")


def _describe_non_number(value: Any) -> str:
    return f"is {short_repr(value)}, not a number: encode it or leave it out"


def _parse_number(text: str) -> float | str:
    """Return the number that the text of a label represents, or the text itself if it is a class name. As in streams, text such
    as "007" or "true" is a name.
    """
    label = parse_label(text)
    return label if isinstance(label, int | float) and not isinstance(label, bool) else text


def _encode_label_values(labels: list[Any], encoder: LabelEncoder, chunks: list[Chunk]) -> np.ndarray:
    """Convert the labels of the rows in ``chunks`` to float64 [n]: to their numeric values if all of them are numbers, otherwise
    to indices of class names, which ``encoder`` assigns.
    """
    if not encoder.meta:  # after a name, all labels are names
        if str in set(map(type, labels)):
            parsed = {text: _parse_number(text) for text in set(labels) if isinstance(text, str)}
            if encoder.has_numeric_labels or all(isinstance(number, int | float) for number in parsed.values()):
                labels = [parsed.get(label, label) for label in labels]
        numbers, count = to_float_prefix(labels)
        if count == len(labels) and np.isfinite(numbers).all():
            encoder.has_numeric_labels = True
            return numbers
    codes = np.empty(len(labels))
    for i, label in enumerate(labels):
        try:
            codes[i] = encoder.encode_label(label)
        except ValueError as error:
            raise ValueError(f"{_locate_row(chunks, i)}: {error}") from None
    return codes


#: With a larger share of non-zero values, rows are stored without indices, which takes less space.
MIN_DENSE_SHARE = 0.5


class SourceOptions(NamedTuple):
    """The options for reading a table or LIBSVM text, as in `write_blocks`."""

    target: str | None = None
    weight: str | Path | None = None
    zero_based: bool = False


def write_blocks(
    source: str | Path,
    path: str | Path,
    *,
    target: str | None = None,
    weight: str | Path | None = None,
    zero_based: bool = False,
    memory_limit: float = DEFAULT_MEMORY_BYTES,
    verbose: bool = False,
) -> tuple[int, int]:
    r"""Convert a text file in LIBSVM format, or a table, to a block file (training rows in binary form), which linear machines
    can read in later fits without parsing the text again. Return the numbers of rows and features.

    Parameters
    ----------
    source
        The file to read. A name that ends with ``.csv``, ``.csv.gz``, ``.parquet``, ``.arrow`` or ``.feather`` is a table, with
        a column of labels and other columns of numbers, which are read as `streamsvm.stream` reads them. Any other file is LIBSVM
        text: lines of a label and pairs index:value with ascending indices. It is decompressed if its name ends with ``.gz``,
        and anything after a ``#`` in a line is ignored.
    path
        Path of the block file. It appears when it is complete. Until then, there are temporary files next to it, whose names
        start with its name.
    target
        Name of the column of labels or targets in a table. Labels may be numbers or names.
    weight
        Weights of the rows, at least 0: the name of a table's column, or, for text, the path of a file with one number per
        line, as LIBSVM's tools use. Rows of weight 0 are skipped. None gives every row weight 1.
    zero_based
        Whether indices in the text start at 0 instead of 1.
    memory_limit
        Maximum memory in bytes, for this function and for later fits: a smaller limit makes smaller blocks. A line that does
        not fit raises an error.
    verbose
        Whether to show progress on standard error.

    Returns
    -------
    tuple of int
        Number of rows and of features.

    Raises
    ------
    ValueError
        A line is malformed, a column is missing, or a value is missing or not a number; the message names it and the reason.
        The unfinished file is removed.
    OSError
        The source cannot be read, or the disk is full.
    ModuleNotFoundError
        The source is a Parquet or Arrow file, and pyarrow is not installed (extra ``files``).

    Notes
    -----
    O(bytes). Rows that are sorted, for example by class, are shuffled, which temporarily needs twice the space. Compiled code
    parses text at 250 to 500 MB/s, while another thread reads and decompresses the next part. Lines with numbers such as ``.5``
    or with more than 19 digits are parsed in Python, which takes 50 times as long. pyarrow reads Parquet and Arrow files, and may
    need more memory than the limit if the file's row groups are large.

    Examples
    --------
    >>> import tempfile
    >>> from streamsvm.linear import write_blocks
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "rows.txt").write_text("+1 1:0.5 3:2  # a comment\n-1 2:1e-3\n")
    >>> write_blocks(folder / "rows.txt", folder / "rows.blocks")
    (2, 3)
    """
    source, path = Path(source), Path(path)
    if any(file.exists() and file.samefile(source) for file in list_output_files(path)):
        raise ValueError(f"{source} would be overwritten: give another path for the block file")
    options = SourceOptions(target, weight, zero_based)
    meta = {"source": fingerprint_source(source, options, memory_limit)}
    if detect_table_format(source):
        return _write_table(source, path, options, memory_limit, meta, verbose)
    block_bytes, index_base = plan_memory(memory_limit).block_bytes, 0 if zero_based else 1
    weights, n_weights = None if weight is None else _read_weights(Path(weight)), 0
    weighted = weights is not None
    with open_shuffling_writer(path, dense=False, weighted=weighted, block_bytes=block_bytes, memory=memory_limit) as writer:
        for line, text in _read_complete_lines(source, block_bytes, int(memory_limit / 4), verbose):
            rows = parse_libsvm(text, index_base, source, line)
            features = int(rows.indices.max()) + 1 if len(rows.indices) else 0
            if weights is not None:
                row_weights = np.fromiter(itertools.islice(weights, len(rows.labels)), float)
                n_weights += len(row_weights)
                if len(row_weights) < len(rows.labels):
                    raise ValueError(f"{weight} ends after {n_weights:,} weights, but {source} has more rows")
                rows = select_rows(rows._replace(weights=row_weights), np.flatnonzero(row_weights))
            writer.append_block(rows, features)
        if weights is not None and next(weights, None) is not None:
            raise ValueError(f"{weight} has more weights than {source} has rows ({n_weights:,})")
        if not writer.shape[0]:
            raise ValueError(f"{source} has no rows" + (" with a weight above 0" if weighted else ""))
        writer.meta = {**meta, "index_base": index_base}
    return writer.shape


def _read_weights(path: Path) -> Iterator[float]:
    """Read weights from a text file with one number in each line, and yield them as floats. Raise a ValueError if a line is not a
    number of at least 0; blank lines at the end are allowed.
    """
    with path.open(encoding="utf-8") as file:
        for line, text in enumerate(file, 1):
            if not text.strip() and not any(map(str.strip, file)):
                return
            try:
                weight = float(text)
            except ValueError:
                weight = math.nan
            if not 0.0 <= weight < math.inf:
                raise ValueError(f"{path}, line {line:,}: {text.strip()[:30]!r} is not a weight (a number of at least 0)")
            yield weight


def _write_table(
    source: Path, path: Path, options: SourceOptions, memory_limit: float, meta: dict[str, Any], verbose: bool
) -> tuple[int, int]:
    block_bytes, encoder = plan_memory(memory_limit).block_bytes, LabelEncoder()
    weight = None if options.weight is None else str(options.weight)
    chunks = read_table_chunks(source, options.target, weight, memory_limit, encoder)
    first = next(chunks, None)
    if first is None:
        raise ValueError(f"{source} has no rows")
    dense = bool(np.count_nonzero(first[0]) > MIN_DENSE_SHARE * first[0].size)
    with (
        show_rows(f"reading {source.name}", verbose) as advance,
        open_shuffling_writer(
            path, dense=dense, weighted=weight is not None, block_bytes=block_bytes, memory=memory_limit
        ) as writer,
    ):
        for X, labels, weights, _ in itertools.chain([first], chunks):
            writer.add(X, labels, weights=weights)
            advance(writer.shape[0])
        if not writer.shape[0]:
            raise ValueError(f"{source} has no rows with a weight above 0")
        are_csv = detect_table_format(source) == "csv"
        writer.meta = {**meta, "names": get_storable_names(first[3]), "labels_are_csv": are_csv, **encoder.meta}
    return writer.shape


def fingerprint_source(source: Path, text: SourceOptions, memory_limit: float) -> dict[str, Any]:
    """Return a dictionary that identifies a version of a source file (name, size, time, inode), the options ``text`` with which
    it is read, and the limit that its blocks respect. A later fit compares it, to reuse a block file.
    """
    stat = source.stat()
    options: dict[str, Any] = {"target": text.target, "zero_based": text.zero_based}
    options["block_bytes"] = plan_memory(memory_limit).block_bytes
    if text.weight is not None:
        is_table = detect_table_format(source) is not None
        options["weight"] = str(text.weight) if is_table else fingerprint_source(Path(text.weight), SourceOptions(), memory_limit)
    inode = [stat.st_dev, stat.st_ino]  # a file in another folder may have the same name, size and time
    return {"name": source.name, "bytes": stat.st_size, "modified": stat.st_mtime_ns, "file": inode, **options}


def _read_complete_lines(source: Path, chunk_bytes: int, max_line_bytes: int, verbose: bool) -> Iterator[tuple[int, bytes]]:
    """Read a text file (decompressed if its name ends with .gz) in chunks of about ``chunk_bytes`` that end with a complete line.
    Yield pairs: the number of lines before the chunk, and its bytes. Raise a ValueError if a line is longer than
    ``max_line_bytes``.

    A thread reads the next chunk in advance.
    """
    total, task = source.stat().st_size, f"reading {source.name}"
    with source.open("rb") as raw, ThreadPoolExecutor(1) as pool, show_bytes(total, task, verbose) as advance:
        file: IO[bytes] = gzip.GzipFile(fileobj=raw) if source.suffix == ".gz" else raw  # type: ignore[assignment]
        rest, line, next_chunk = b"", 0, pool.submit(_read_bytes, file, source, chunk_bytes)
        while chunk := next_chunk.result():
            text = rest + (chunk if line or rest else chunk.removeprefix(codecs.BOM_UTF8))
            next_chunk = pool.submit(_read_bytes, file, source, chunk_bytes)
            advance(raw.tell())
            stop = text.rfind(b"\n") + 1
            if not stop and len(text) > max_line_bytes:
                raise ValueError(f"{source}, line {line + 1:,} is longer than {max_line_bytes:,} bytes: raise memory_limit")
            rest = text[stop:]
            if stop:
                yield line, text[:stop]
                line += text.count(b"\n")
        if rest:
            yield line, rest


def _read_bytes(file: IO[bytes], source: Path, size: int) -> bytes:
    try:
        return file.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{source} cannot be decompressed: {error}") from error


def parse_libsvm(text: bytes, index_base: int, source: Path, n_lines_before: int) -> Block:
    """Parse complete lines of text in LIBSVM format (a label, and pairs index:value), and return them as a block of sparse rows.
    Raise a ValueError that names the line if it is malformed. ``n_lines_before`` is the number of earlier lines of ``source``.

    ``index_base``, the first index in the text, becomes 0. Line numbers are those in ``source``.
    """
    lines, data = text.count(b"\n"), np.frombuffer(text, np.uint8)
    labels, starts = np.empty(lines + 1), np.zeros(lines + 2, np.uint32)
    indices, values = np.empty(len(text) // 3 + 1, np.uint32), np.empty(len(text) // 3 + 1, np.float32)
    rows = position = 0
    while True:
        rows, position = read_sparse(data, position, rows, index_base, labels, starts, indices, values)
        if position == len(text):
            break
        line_end = text.find(b"\n", position) + 1 or len(text)
        try:
            row = _parse_line(text[position:line_end], index_base)
        except ValueError as error:
            number = n_lines_before + text.count(b"\n", 0, position) + 1
            line_text = text[position : min(line_end, position + 30)].decode(errors="replace").strip()
            raise ValueError(f"{source}, line {number:,}, at {line_text!r}: {error}") from None
        if row is not None:
            start, stop = starts[rows], starts[rows] + len(row[1])
            labels[rows], indices[start:stop], values[start:stop] = row
            rows += 1
            starts[rows] = stop
        position = line_end
    count = starts[rows]
    return Block(0, labels[:rows], np.empty(0, np.uint64), starts[: rows + 1], indices[:count], values[:count])


def _parse_line(line: bytes, index_base: int) -> tuple[float, np.ndarray, np.ndarray] | None:
    """Parse one line of LIBSVM text in Python, for rare number formats that the compiled parser does not support. Return label,
    indices (counted from 0) and values; None for a blank line. ``index_base`` is the first index of the text.

    Returns None for a blank line. Raises ValueError if the line is malformed.
    """
    row = parse_libsvm_line(line.decode(errors="replace"))
    if row is None:
        return None
    if type(row.y) not in (int, float):
        raise ValueError("a line must start with a numeric label")
    indices: list[Any] = list(row.x)
    if sorted(indices) != indices:
        raise ValueError("indices must ascend within a line")
    if indices and indices[0] < index_base:
        raise ValueError("indices start at 1, or with zero_based=True at 0")
    if indices and indices[-1] > LARGEST_INDEX:
        raise ValueError(f"indices must be at most {LARGEST_INDEX:,}")
    with np.errstate(over="ignore"):
        values = np.array(list(row.x.values())).astype(np.float32)
    if not (math.isfinite(row.y) and np.isfinite(values).all()):
        raise ValueError("values must be finite in float32")
    return float(row.y), np.array(indices, np.int64) - index_base, values
