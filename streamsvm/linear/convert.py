"""Block files from LIBSVM text, which is parsed by compiled code, with weights of its rows; and from tables."""

from __future__ import annotations

import codecs
import gzip
import itertools
import math
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.progress import shown_bytes, shown_rows
from streamsvm.linear import tables
from streamsvm.linear.block_file import Block, take_sparse
from streamsvm.linear.block_writer import DEFAULT_LIMIT, BlockWriter, plan
from streamsvm.linear.mixing import files_of, mixing_writer
from streamsvm.linear.names import LabelCodes, names_to_save

END, NO_LABEL, NO_PAIR, NOT_RISING, TOO_LARGE, TOO_SMALL, NOT_FINITE = range(7)  # the reasons why parsing ended
LARGEST_INDEX = 2**31 - 2
_LARGEST_POWER, _LARGE = 300, 1e300
_DIGITS = 18  # any number of so many digits fits into an unsigned integer of 64 bits


@compiled
def parse_libsvm(
    text: np.ndarray, first: int, labels: np.ndarray, starts: np.ndarray, indices: np.ndarray, values: np.ndarray
) -> tuple[int, int, int, int, int]:
    """Parse whole lines, uint8 [bytes], with indices from ``first`` on, which becomes 0.

    Writes labels float64 and starts uint32, with room for one row more than lines, indices uint32 and values float32, with room
    for a third of the bytes. Returns how many rows and values there are, why it ended (`END`: there is no error) and where, and
    the largest index, -1 where there is none.
    """
    n, at, rows, k, largest = len(text), 0, 0, 0, -1
    while True:
        while at < n and _is_blank(text[at]):
            at += 1
        if at < n and text[at] == 35:  # a comment
            at = _end_of_line(text, at)
            continue
        starts[rows] = k
        if at >= n:
            return rows, k, END, at, largest
        begin = at
        labels[rows], at = _number(text, at)
        if at == begin or (at < n and not _is_blank(text[at]) and text[at] != 35):
            return rows, k, NO_LABEL, begin, largest
        if not np.isfinite(labels[rows]):
            return rows, k, NOT_FINITE, begin, largest
        last = -1
        while True:
            while at < n and _is_blank(text[at]) and text[at] != 10:
                at += 1
            if at >= n or text[at] == 10:
                break
            if text[at] == 35:
                at = _end_of_line(text, at)
                break
            begin, index = at, np.int64(0)
            while at < n and 48 <= text[at] <= 57 and index <= LARGEST_INDEX:
                index = 10 * index + (np.int64(text[at]) - 48)
                at += 1
            if index > LARGEST_INDEX:
                return rows, k, TOO_LARGE, begin, largest
            if at == begin or at >= n or text[at] != 58:
                return rows, k, NO_PAIR, begin, largest
            at += 1
            start = at
            value, at = _number(text, at)
            if at == start or (at < n and not _is_blank(text[at]) and text[at] != 35):
                return rows, k, NO_PAIR, begin, largest
            if index <= last:
                return rows, k, NOT_RISING, begin, largest
            if index < first:
                return rows, k, TOO_SMALL, begin, largest
            last = int(index)
            largest = max(largest, int(index) - first)
            indices[k], values[k] = index - first, value
            if not np.isfinite(values[k]):
                return rows, k, NOT_FINITE, begin, largest
            k += 1
        rows += 1


@compiled
def _is_blank(byte: int) -> bool:
    return byte == 32 or 9 <= byte <= 13


@compiled
def _end_of_line(text: np.ndarray, at: int) -> int:
    while at < len(text) and text[at] != 10:
        at += 1
    return at


@compiled
def _number(text: np.ndarray, at: int) -> tuple[float, int]:
    """Return a decimal number and the place after it; the same place where there is no number."""
    n, begin, sign = len(text), at, 1.0
    if at < n and (text[at] == 45 or text[at] == 43):
        sign = -1.0 if text[at] == 45 else 1.0
        at += 1
    mantissa, digits, scale, some, point = np.uint64(0), 0, 0, False, False
    while at < n and (48 <= text[at] <= 57 or (text[at] == 46 and not point)):
        if text[at] == 46:
            point = True
        else:
            some = True
            if digits < _DIGITS:
                mantissa = mantissa * np.uint64(10) + np.uint64(text[at] - 48)
                digits += mantissa != 0
                scale -= point
            else:
                scale += not point
        at += 1
    if not some:
        return 0.0, begin
    if at < n and (text[at] == 101 or text[at] == 69):
        mark, negative, exponent = at, False, np.int64(0)
        at += 1
        if at < n and (text[at] == 45 or text[at] == 43):
            negative = text[at] == 45
            at += 1
        if at >= n or not 48 <= text[at] <= 57:
            at = mark  # no exponent: the number ends here
        while at < n and 48 <= text[at] <= 57:
            if exponent < 100_000:
                exponent = 10 * exponent + (np.int64(text[at]) - 48)
            at += 1
        scale += int(-exponent if negative else exponent)
    number = float(mantissa)
    if number == 0.0 or scale < -400:
        return sign * 0.0, at
    if scale > 400:
        return sign * np.inf, at
    if abs(scale) > _LARGEST_POWER:  # this power is no float, though the product may be one
        number = number / _LARGE if scale < 0 else number * _LARGE
        scale += _LARGEST_POWER if scale < 0 else -_LARGEST_POWER
    return sign * (number / 10.0**-scale if scale < 0 else number * 10.0**scale), at


class _WeightLines:
    """Reads the weights of rows, some at a time, from a file of text; None: there are none."""

    def __init__(self, file: IO[str] | None) -> None:
        self._file, self._line = file, 0

    def take(self, n: int, source: Path) -> np.ndarray | None:
        """Return the weights of the next n rows of the text ``source``, float64 [n]; ValueError where they are none or few."""
        if self._file is None:
            return None
        found = np.empty(n)
        lines = list(itertools.islice(self._file, n))
        if len(lines) < n:
            raise ValueError(f"{self._file.name} ends after {self._line + len(lines):,} weights, and {source} has more rows")
        for i, text in enumerate(lines):
            self._line += 1
            try:
                found[i] = float(text)
            except ValueError:
                found[i] = math.nan
            if not 0.0 <= found[i] < math.inf:
                where = f"{self._file.name}, line {self._line:,}"
                raise ValueError(f"{where}: {text.strip()[:30]!r} is no weight, a number of at least 0")
        return found

    def end(self, source: Path) -> None:
        """Raise a ValueError where weights are left, other than blank lines."""
        if self._file is not None and any(line.strip() for line in self._file):
            raise ValueError(f"{self._file.name} has more weights than {source} has rows, {self._line:,}")


#: If more than this part of all values is not zero, rows are written without indices, which takes less space.
DENSE = 0.5

_REASONS = {
    NO_LABEL: "a line begins with its label, a number",
    NO_PAIR: "after the label come pairs index:value of numbers",
    NOT_RISING: "indices must rise within a line",
    TOO_LARGE: f"indices may be up to {LARGEST_INDEX:,}",
    TOO_SMALL: "indices begin at 1, or with zero_based=True at 0",
    NOT_FINITE: "values must be finite in float32",
}


class TextOptions(NamedTuple):
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
        The file to read. A name that ends with ``.csv``, ``.csv.gz``, ``.parquet``, ``.arrow`` or ``.feather`` is a table
        (extra ``files``), with a column of labels and other columns of numbers. Any other file is LIBSVM text: lines of a label
        and pairs index:value with rising indices. It is unpacked if its name ends with ``.gz``, and anything after a ``#`` in a
        line is ignored.
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
        The source is a table, and pyarrow is not installed.

    Notes
    -----
    O(bytes). Rows that come sorted, for example by class, are dealt to blocks at random, which needs twice the space for a
    while. Text is parsed by compiled code at 250 to 500 MB/s, while another thread reads and unpacks the next part. Tables are
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
    options = TextOptions(target, weight, zero_based)
    meta = {"source": stamp_of(source, options)}
    if tables.kind_of(source):
        return _write_table(source, path, options, memory_limit, meta, verbose)
    size = plan(memory_limit).block
    weighted = weight is not None
    with (
        mixing_writer(path, dense=False, weighted=weighted, block_bytes=size, memory=memory_limit) as writer,
        nullcontext() if weight is None else Path(weight).open(encoding="utf-8") as file,
    ):
        line, weights = 0, _WeightLines(file)
        for text in _texts(source, size, int(memory_limit / 4), verbose):
            line = _write(writer, text, source, line, zero_based, weights)
        weights.end(source)
        if not writer.shape[0]:
            raise ValueError(f"{source} has no rows" + (" of a weight above 0" if weighted else ""))
        writer.meta = {**meta, "first_index": 0 if zero_based else 1}
    return writer.shape


def _write_table(
    source: Path, path: Path, options: TextOptions, memory_limit: float, meta: dict[str, Any], verbose: bool
) -> tuple[int, int]:
    size, codes = plan(memory_limit).block, LabelCodes()
    weight = None if options.weight is None else str(options.weight)
    chunks = tables.chunks(source, options.target, weight, size, codes)
    first = next(chunks, None)
    if first is None:
        raise ValueError(f"{source} has no rows")
    dense = bool(np.count_nonzero(first[0]) > DENSE * first[0].size)
    with (
        shown_rows(f"reading {source.name}", verbose) as advance,
        mixing_writer(path, dense=dense, weighted=weight is not None, block_bytes=size, memory=memory_limit) as writer,
    ):
        for X, labels, weights, _ in itertools.chain([first], chunks):
            writer.add(X, labels, weights=weights)
            advance(writer.shape[0])
        if not writer.shape[0]:
            raise ValueError(f"{source} has no rows of a weight above 0")
        writer.meta = {**meta, "names": names_to_save(first[3]), "text_labels": tables.kind_of(source) == "csv", **codes.meta}
    return writer.shape


def stamp_of(source: Path, text: TextOptions) -> dict[str, Any]:
    """Return what a block file saves of its source, to see later whether it was made from the same file with the same options."""
    stat = source.stat()
    options: dict[str, Any] = {"target": text.target, "zero_based": text.zero_based}
    if text.weight is not None:
        of_table = tables.kind_of(source) is not None
        options["weight"] = str(text.weight) if of_table else stamp_of(Path(text.weight), TextOptions())
    inode = [stat.st_dev, stat.st_ino]  # another folder may have a file of the same name, size and time
    return {"name": source.name, "bytes": stat.st_size, "modified": stat.st_mtime_ns, "file": inode, **options}


def _texts(source: Path, size: int, longest: int, verbose: bool) -> Iterator[np.ndarray]:
    """Yield whole lines, uint8, of about ``size`` bytes, while a thread reads the next ones."""
    total, what = source.stat().st_size, f"reading {source.name}"
    with source.open("rb") as raw, ThreadPoolExecutor(1) as pool, shown_bytes(total, what, verbose) as advance:
        file: IO[bytes] = gzip.GzipFile(fileobj=raw) if source.suffix == ".gz" else raw  # type: ignore[assignment]
        rest, line, next_chunk = b"", 0, pool.submit(_read, file, source, size)
        while chunk := next_chunk.result():
            text = rest + (chunk if line or rest else chunk.removeprefix(codecs.BOM_UTF8))
            next_chunk = pool.submit(_read, file, source, size)
            advance(raw.tell())
            end = text.rfind(b"\n") + 1
            if not end and len(text) > longest:
                raise ValueError(f"{source}, line {line + 1:,} is longer than {longest:,} bytes: raise memory_limit")
            rest = text[end:]
            if end:
                line += text.count(b"\n")
                yield np.frombuffer(text, np.uint8, end)
        if rest:
            yield np.frombuffer(rest, np.uint8)


def _read(file: IO[bytes], source: Path, size: int) -> bytes:
    try:
        return file.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{source} cannot be unpacked: {error}") from error


def _write(writer: BlockWriter, text: np.ndarray, source: Path, line: int, zero_based: bool, weights: _WeightLines) -> int:
    """Write the rows of some lines, of which ``line`` came before; return how many lines there were so far."""
    lines = int(np.count_nonzero(text == ord("\n")))
    labels, starts = np.empty(lines + 1), np.empty(lines + 2, np.uint32)
    indices, values = np.empty(len(text) // 3 + 1, np.uint32), np.empty(len(text) // 3 + 1, np.float32)
    first = 0 if zero_based else 1
    rows, count, why, at, largest = parse_libsvm(text, first, labels, starts, indices, values)
    if why != END:
        number = line + int(np.count_nonzero(text[:at] == ord("\n"))) + 1
        shown = bytes(text[at : at + 30]).split(b"\n")[0].decode(errors="replace")
        raise ValueError(f"{source}, line {number:,}, at {shown!r}: {_REASONS[why]}")
    block = Block(0, labels[:rows], np.empty(0, np.uint64), starts[: rows + 1], indices[:count], values[:count])
    if (some := weights.take(rows, source)) is not None:
        kept = np.flatnonzero(some)
        starts, indices, values = take_sparse(block, kept)
        block = Block(0, block.labels[kept], block.numbers, starts, indices, values, some[kept])
    writer.append(block, largest + 1)
    return line + lines
