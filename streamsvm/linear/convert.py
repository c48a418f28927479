"""Block files from LIBSVM text, with weights of its rows, and from tables in files: CSV, Parquet and Arrow."""

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
from streamsvm.linear.block_file import Block, LabelCodes, names_to_save, take_rows
from streamsvm.linear.block_writer import DEFAULT_LIMIT, files_of, mixing_writer, planned_sizes
from streamsvm.stream.arrow import KINDS, ArrowSource
from streamsvm.stream.csv_source import CSVSource
from streamsvm.stream.endpoints import Source, StreamError
from streamsvm.stream.open import detect_format
from streamsvm.stream.rows import parse_label
from streamsvm.stream.sources import parse_libsvm_line
from streamsvm.stream.tables.chunk import BadRow, Chunk, to_float_prefix

_ROWS_IN_LIMIT = 16  # a row takes at most this part of the limit


def kind_of(source: Path) -> str | None:
    """Return the format of a table, by the name of the file; None where it is no table."""
    try:
        kind = detect_format(source.name)
    except StreamError:
        return None
    return kind if kind in ("csv", *KINDS) else None


def table_chunks(
    source: Path, target: str | None, weight: str | None, memory_limit: float, codes: LabelCodes
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None, list[str]]]:
    """Yield rows float64 [n, features], labels float64 [n], weights float64 [n] and the names of the features.

    Chunks have at most the bytes of a block, or one row. ``weight`` is the column of weights; None: there are none.
    """
    is_csv = kind_of(source) == "csv"
    try:
        with _TextLabels(source, target) if is_csv else ArrowSource(source, target, label_needed=False) as opened:
            known = opened.columns
            if target not in known:
                columns = ", ".join(known[:8])
                raise ValueError(f"{source} has no column {target!r}: name the column of labels with target=, one of {columns}")
            if weight is not None and (weight == target or weight not in known):
                raise ValueError(f"{source} has no column {weight!r} of weights beside that of labels: name it with weight=")
            features = [name for name in known if name not in (target, weight)]
            if not features:
                raise ValueError(f"{source} has no column but {target!r}" + (f" and {weight!r}" if weight else ""))
            names = features if weight is None else [*features, weight]
            size = 8 * len(names)  # of a row
            if size > memory_limit / _ROWS_IN_LIMIT:
                raise ValueError(f"{source}: a row must be shorter than a sixteenth of memory_limit, and takes {size:,} bytes")
            for held in _gathered_chunks(opened, max(planned_sizes(memory_limit).block // size, 1)):
                parts = [_chunk_arrays(chunk, names) for chunk in held]
                X, labels = np.concatenate([X for X, _ in parts]), [label for _, labels in parts for label in labels]
                weights = None if weight is None else X[:, -1]
                if weights is not None and (weights < 0.0).any():
                    row = int(np.argmax(weights < 0.0))
                    what = f"column {weight!r} is {weights[row]:g}, and a weight is at least 0"
                    raise ValueError(f"{_place_text(held, row)}: {what}")
                yield X[:, : len(features)], _label_codes(labels, codes, held), weights, features
    except StreamError as error:
        raise ValueError(str(error)) from error


class _TextLabels(CSVSource):
    """CSV text whose columns are known before a row is read, and whose labels are texts."""

    def __init__(self, path: Path, label: str | None) -> None:
        super().__init__(path, label, label_needed=False)
        try:
            self._start_reading()
        except StreamError:
            self.close()
            raise

    def parse_label_cell(self, text: str) -> str | None:
        return text.strip() or None


def _gathered_chunks(source: Source, most: int) -> Iterator[list[Chunk]]:
    """Yield chunks that have ``most`` rows together; the last ones may have fewer."""
    held: list[Chunk] = []
    rows = 0
    while (chunk := source.read(most - rows)) is not None:
        held.append(chunk)
        rows += len(chunk)
        if rows == most:
            yield held
            held, rows = [], 0
    if rows:
        yield held


def _place_text(held: list[Chunk], row: int) -> str:
    chunk, i = [(chunk, i) for chunk in held for i in range(len(chunk))][row]
    return chunk.place(i)


def _chunk_arrays(chunk: Chunk, names: list[str]) -> tuple[np.ndarray, list[Any]]:
    """Return the columns of these names, float64 [n, names], and the labels."""
    n, table = len(chunk), chunk.table(names) if len(chunk) else None
    X, labels = np.full((n, len(names)), np.nan), [None] * n if table is None or table.y is None else list(table.y)
    for column, name in enumerate(names):
        if table is not None and (values := table.get_column(name)) is not None:
            numbers, count = to_float_prefix(values)
            if count < n:
                raise _refusal_of_row(chunk, count, name, _no_number(values[count]))
            X[:, column] = numbers
    for i in range(n) if table is None else table.unparsed_rows:
        row = chunk.row(i)
        if isinstance(row, BadRow):
            raise ValueError(f"{row.place}: {row.reason}")
        cells = [row.x.get(name) for name in names]
        numbers, count = to_float_prefix(cells)
        if count < len(cells):
            raise _refusal_of_row(chunk, i, names[count], _no_number(cells[count]))
        X[i], labels[i] = numbers, row.y
    with np.errstate(over="ignore"):
        finite = np.isfinite(X.astype(np.float32))
    if not finite.all():
        i, column = map(int, np.argwhere(~finite)[0])
        what = f"is {X[i, column]:g}, which is not finite in float32: impute or scale it"
        missing = "has no value: impute it or leave the row out"
        raise _refusal_of_row(chunk, i, names[column], missing if np.isnan(X[i, column]) else what)
    return X, labels


def _refusal_of_row(chunk: Chunk, row: int, column: str, what: str) -> ValueError:
    return ValueError(f"{chunk.place(row)}: column {column!r} {what}")


def _no_number(value: Any) -> str:
    return f"is {short_repr(value)}, not a number: encode it or leave it out"


def _number_or_text(text: str) -> float | str:
    # A number as the sources of streams see it: text such as 007 is a name there.
    found = parse_label(text)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else text


def _label_codes(found: list[Any], codes: LabelCodes, held: list[Chunk]) -> np.ndarray:
    if not codes.meta:  # where names came before, everything is a name
        if str in set(map(type, found)):
            read = {text: _number_or_text(text) for text in set(found) if isinstance(text, str)}
            if codes.numbers or all(isinstance(number, int | float) for number in read.values()):
                found = [read.get(label, label) for label in found]
        numbers, count = to_float_prefix(found)
        if count == len(found) and np.isfinite(numbers).all():
            codes.numbers = True
            return numbers
    labels = np.empty(len(found))
    for i, label in enumerate(found):
        try:
            labels[i] = codes.code(label)
        except ValueError as error:
            raise ValueError(f"{_place_text(held, i)}: {error}") from None
    return labels


#: If more than this part of all values is not zero, rows are written without indices, which takes less space.
DENSE = 0.5


class SourceOptions(NamedTuple):
    """How text or a table is read; see `write_blocks`."""

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
    memory_limit: float = DEFAULT_LIMIT,
    verbose: bool = False,
) -> tuple[int, int]:
    r"""Write a block file from LIBSVM text or a table, once for all fits.

    Parameters
    ----------
    source
        The file to read. A name that ends with ``.csv``, ``.csv.gz``, ``.parquet``, ``.arrow`` or ``.feather`` is a table, with
        a column of labels and other columns of numbers, which are read as `streamsvm.stream` reads them. Any other file is LIBSVM
        text: lines of a label and pairs index:value with rising indices. It is unpacked if its name ends with ``.gz``, and
        anything after a ``#`` in a line is ignored.
    path
        Path of the block file. It appears once all of it is written. Until then, there are temporary files next to it, whose
        names begin with its name.
    target
        Name of the column of labels or targets in a table. Labels may be numbers or names.
    weight
        Weights of the rows, at least 0: the name of a column of a table, or for text the path of a file with one number a line,
        as LIBSVM's tools have them. Rows of weight 0 are left out. None gives every row weight 1.
    zero_based
        Whether the first index in the text is 0 and not 1.
    memory_limit
        Maximum memory in bytes, for this function and for later fits: a smaller limit makes smaller blocks. A line that does
        not fit is refused.
    verbose
        Whether to show progress on standard error.

    Returns
    -------
    tuple of int
        Number of rows and of features.

    Raises
    ------
    ValueError
        A line is malformed, a column is missing, or a value is missing or not a number; the message says which one, and why. No
        file is left.
    OSError
        The source cannot be read, or the disk is full.
    ModuleNotFoundError
        The source is a Parquet or Arrow file, and pyarrow is not installed (extra ``files``).

    Notes
    -----
    O(bytes). Rows that come sorted, for example by class, are dealt to blocks at random, which needs twice the space for a
    while. Text is parsed by compiled code at 250 to 500 MB/s, while another thread reads and unpacks the next part; lines with
    numbers such as ``.5`` or of more than 19 digits, one by one in Python, take 50 times as long. Parquet and Arrow files are
    read by pyarrow, which may need more memory than the limit if the file's own groups of rows are large.

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
    if any(file.exists() and file.samefile(source) for file in files_of(path)):
        raise ValueError(f"{source} would be overwritten: give another path for the block file")
    options = SourceOptions(target, weight, zero_based)
    meta = {"source": stamp_of(source, options)}
    if kind_of(source):
        return _write_table(source, path, options, memory_limit, meta, verbose)
    size = planned_sizes(memory_limit).block
    first, read, weights = 0 if zero_based else 1, 0, None if weight is None else _weights_in(Path(weight))
    weighted = weights is not None
    with mixing_writer(path, dense=False, weighted=weighted, block_bytes=size, memory=memory_limit) as writer:
        for line, text in _whole_lines(source, size, int(memory_limit / 4), verbose):
            rows = parse_libsvm(text, first, source, line)
            features = int(rows.indices.max()) + 1 if len(rows.indices) else 0
            if weights is not None:
                some = np.fromiter(itertools.islice(weights, len(rows.labels)), float)
                read += len(some)
                if len(some) < len(rows.labels):
                    raise ValueError(f"{weight} ends after {read:,} weights, and {source} has more rows")
                rows = take_rows(rows._replace(weights=some), np.flatnonzero(some))
            writer.append(rows, features)
        if weights is not None and next(weights, None) is not None:
            raise ValueError(f"{weight} has more weights than {source} has rows, {read:,}")
        if not writer.shape[0]:
            raise ValueError(f"{source} has no rows" + (" of a weight above 0" if weighted else ""))
        writer.meta = {**meta, "index_base": first}
    return writer.shape


def _weights_in(path: Path) -> Iterator[float]:
    """Yield the weights in a file of text, one a line, which may end with blank lines."""
    with path.open(encoding="utf-8") as file:
        for line, text in enumerate(file, 1):
            if not text.strip() and not any(map(str.strip, file)):
                return
            try:
                weight = float(text)
            except ValueError:
                weight = math.nan
            if not 0.0 <= weight < math.inf:
                raise ValueError(f"{path}, line {line:,}: {text.strip()[:30]!r} is no weight, a number of at least 0")
            yield weight


def _write_table(
    source: Path, path: Path, options: SourceOptions, memory_limit: float, meta: dict[str, Any], verbose: bool
) -> tuple[int, int]:
    size, codes = planned_sizes(memory_limit).block, LabelCodes()
    weight = None if options.weight is None else str(options.weight)
    chunks = table_chunks(source, options.target, weight, memory_limit, codes)
    first = next(chunks, None)
    if first is None:
        raise ValueError(f"{source} has no rows")
    dense = bool(np.count_nonzero(first[0]) > DENSE * first[0].size)
    with (
        show_rows(f"reading {source.name}", verbose) as advance,
        mixing_writer(path, dense=dense, weighted=weight is not None, block_bytes=size, memory=memory_limit) as writer,
    ):
        for X, labels, weights, _ in itertools.chain([first], chunks):
            writer.add(X, labels, weights=weights)
            advance(writer.shape[0])
        if not writer.shape[0]:
            raise ValueError(f"{source} has no rows of a weight above 0")
        writer.meta = {**meta, "names": names_to_save(first[3]), "labels_are_csv": kind_of(source) == "csv", **codes.meta}
    return writer.shape


def stamp_of(source: Path, text: SourceOptions) -> dict[str, Any]:
    """Return what a block file saves of its source, to see later whether it was made from the same file with the same options."""
    stat = source.stat()
    options: dict[str, Any] = {"target": text.target, "zero_based": text.zero_based}
    if text.weight is not None:
        of_table = kind_of(source) is not None
        options["weight"] = str(text.weight) if of_table else stamp_of(Path(text.weight), SourceOptions())
    inode = [stat.st_dev, stat.st_ino]  # another folder may have a file of the same name, size and time
    return {"name": source.name, "bytes": stat.st_size, "modified": stat.st_mtime_ns, "file": inode, **options}


def _whole_lines(source: Path, size: int, longest: int, verbose: bool) -> Iterator[tuple[int, bytes]]:
    """Yield how many lines came before, and whole lines of about ``size`` bytes, while a thread reads the next ones."""
    total, what = source.stat().st_size, f"reading {source.name}"
    with source.open("rb") as raw, ThreadPoolExecutor(1) as pool, show_bytes(total, what, verbose) as advance:
        file: IO[bytes] = gzip.GzipFile(fileobj=raw) if source.suffix == ".gz" else raw  # type: ignore[assignment]
        rest, line, next_chunk = b"", 0, pool.submit(_read_some, file, source, size)
        while chunk := next_chunk.result():
            text = rest + (chunk if line or rest else chunk.removeprefix(codecs.BOM_UTF8))
            next_chunk = pool.submit(_read_some, file, source, size)
            advance(raw.tell())
            end = text.rfind(b"\n") + 1
            if not end and len(text) > longest:
                raise ValueError(f"{source}, line {line + 1:,} is longer than {longest:,} bytes: raise memory_limit")
            rest = text[end:]
            if end:
                yield line, text[:end]
                line += text.count(b"\n")
        if rest:
            yield line, rest


def _read_some(file: IO[bytes], source: Path, size: int) -> bytes:
    try:
        return file.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{source} cannot be unpacked: {error}") from error


def parse_libsvm(text: bytes, first: int, source: Path, line: int) -> Block:
    """Return the rows of whole lines of ``source``, which ``line`` came before. Indices begin at ``first``, which becomes 0."""
    lines, data = text.count(b"\n"), np.frombuffer(text, np.uint8)
    labels, starts = np.empty(lines + 1), np.zeros(lines + 2, np.uint32)
    indices, values = np.empty(len(text) // 3 + 1, np.uint32), np.empty(len(text) // 3 + 1, np.float32)
    rows = at = 0
    while True:
        rows, at = read_sparse(data, at, rows, first, labels, starts, indices, values)
        if at == len(text):
            break
        end = text.find(b"\n", at) + 1 or len(text)
        try:
            row = _read_row(text[at:end], first)
        except ValueError as error:
            number, line_text = line + text.count(b"\n", 0, at) + 1, text[at : min(end, at + 30)].decode(errors="replace").strip()
            raise ValueError(f"{source}, line {number:,}, at {line_text!r}: {error}") from None
        if row is not None:
            begin, stop = starts[rows], starts[rows] + len(row[1])
            labels[rows], indices[begin:stop], values[begin:stop] = row
            rows += 1
            starts[rows] = stop
        at = end
    count = starts[rows]
    return Block(0, labels[:rows], np.empty(0, np.uint64), starts[: rows + 1], indices[:count], values[:count])


def _read_row(line: bytes, first: int) -> tuple[float, np.ndarray, np.ndarray] | None:
    """Return label, indices and values of a line that `read_sparse` does not read, None if it has no row; or say why not."""
    row = parse_libsvm_line(line.decode(errors="replace"))
    if row is None:
        return None
    if type(row.y) not in (int, float):
        raise ValueError("a line begins with its label, a number")
    indices: list[Any] = list(row.x)
    if sorted(indices) != indices:
        raise ValueError("indices must rise within a line")
    if indices and indices[0] < first:
        raise ValueError("indices begin at 1, or with zero_based=True at 0")
    if indices and indices[-1] > LARGEST_INDEX:
        raise ValueError(f"indices may be up to {LARGEST_INDEX:,}")
    with np.errstate(over="ignore"):
        values = np.array(list(row.x.values())).astype(np.float32)
    if not (math.isfinite(row.y) and np.isfinite(values).all()):
        raise ValueError("values must be finite in float32")
    return float(row.y), np.array(indices, np.int64) - first, values
