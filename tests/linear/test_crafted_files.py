"""Tests of forged block files: their checksums are valid, but counts, offsets and indices must still be validated."""

import json
import os
import zlib

import numpy as np
import pytest
from scipy import sparse

from refused import refused
from streamsvm.linear import BlockFile, BlockFileError, BlockWriter, OutOfCoreLinearSVC, block_file

N, D = 40, 6
FIELDS = ("magic", "version", "dense", "numbered", "rows", "features", "blocks", "begin", "end", "crc")


class ForgedFile:
    """A block file that a test can change in any part. `write` computes new checksums, so that they match."""

    def __init__(self, path, dense=False, weighted=False):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(N, D)) * (rng.random((N, D)) < (1.0 if dense else 0.5))
        with BlockWriter(path, dense=dense, weighted=weighted, block_bytes=500) as writer:
            weights = {"weights": rng.uniform(0.5, 2.0, N)} if weighted else {}
            writer.add(X if dense else sparse.csr_array(X), np.arange(N) % 2.0, **weights)
        self.path, self.data = path, bytearray(path.read_bytes())
        self.header = dict(zip(FIELDS, block_file.HEADER.unpack_from(self.data), strict=True))
        index_start = self.header["begin"]
        size = self.header["blocks"] * block_file.INDEX_DTYPE.itemsize
        self.index = np.frombuffer(bytes(self.data[index_start : index_start + size]), block_file.INDEX_DTYPE).copy()
        self.footer = bytes(self.data[index_start + size : self.header["end"]])

    def get_parts(self, number):
        """Return writable arrays of a block: labels, weights, starts, indices and values."""
        entry = self.index[number]
        offset, n, values = (int(entry[name]) for name in ("offset", "rows", "values"))
        sizes = (0, 0, 4 * values) if self.header["dense"] else (4 * (n + 1), 4 * values, 4 * values)
        sizes, parts = (8 * n, 8 * n if self.header["version"] == 2 else 0, *sizes), []
        for size, kind in zip(sizes, ("<f8", "<f8", "<u4", "<u4", "<f4"), strict=True):
            parts.append(np.frombuffer(memoryview(self.data)[offset : offset + size], kind))
            offset += size
        return parts

    def write(self, *, block_crc=True, index_crc=True, **header_changes):
        """Write the file. Keyword arguments replace fields of the header."""
        header, index_start = self.header, self.header["begin"]
        for number, entry in enumerate(self.index):
            if block_crc:
                entry["crc"] = zlib.crc32(b"".join(part.tobytes() for part in self.get_parts(number)))
        tail = self.index.tobytes() + self.footer
        header["end"] = index_start + len(tail)
        if index_crc:
            header["crc"] = zlib.crc32(tail)
        packed = block_file.HEADER.pack(*(header | header_changes).values())
        self.data[: len(packed) + block_file.CRC_STRUCT.size] = packed + block_file.CRC_STRUCT.pack(zlib.crc32(packed))
        self.path.write_bytes(bytes(self.data[:index_start]) + tail)

    def read(self):
        with BlockFile(self.path) as file:
            return [file.read_block(number) for number in range(len(file))]


@pytest.fixture(params=[False, True], ids=["sparse", "dense"])
def forged_file(tmp_path, request):
    return ForgedFile(tmp_path / "rows", request.param)


@pytest.fixture
def sparse_file(tmp_path):
    return ForgedFile(tmp_path / "rows")


def test_unchanged_file_is_read(forged_file):
    before = forged_file.path.read_bytes()
    forged_file.write()
    assert forged_file.path.read_bytes() == before
    assert sum(len(block.labels) for block in forged_file.read()) == N


def check_is_refused(forged_file, match):
    """Check that reading and fitting raise `BlockFileError` with a message that matches."""
    refused(match, forged_file.read, error=BlockFileError)
    refused(match, OutOfCoreLinearSVC().fit_file, forged_file.path, error=BlockFileError)


@pytest.mark.parametrize("part", ["labels", "values"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_refused(forged_file, part, value):
    forged_file.get_parts(1)[0 if part == "labels" else -1][2] = value
    forged_file.write()
    check_is_refused(forged_file, "block 1 is not what was written")


def change_indices(sparse_file, number, change):
    *_, starts, indices, _ = sparse_file.get_parts(number)
    row = int(np.flatnonzero(np.diff(starts.astype(int)) >= 2)[0])
    change(indices[starts[row] : starts[row + 1]], starts)


@pytest.mark.parametrize(
    ("number", "change"),
    [
        *((1, lambda row, starts, value=value: row.__setitem__(-1, value)) for value in (D, D + 1, 2**31 - 1, 2**31, 2**32 - 1)),
        (0, lambda row, starts: row.__setitem__(slice(None), row[::-1].copy())),  # features that do not ascend
        (0, lambda row, starts: row.__setitem__(slice(None), row[0])),
        (1, lambda row, starts: starts.__setitem__(0, 1)),
        (1, lambda row, starts: starts.__setitem__(-1, starts[-1] - 1)),
        (1, lambda row, starts: starts.__setitem__(slice(2, 4), [starts[4], starts[1]])),
        (1, lambda row, starts: starts.__setitem__(2, 2**32 - 1)),
    ],
)
def test_indices_and_starts_out_of_range_are_refused(sparse_file, number, change):
    change_indices(sparse_file, number, change)
    sparse_file.write()
    check_is_refused(sparse_file, f"block {number} is not what was written")


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("version", 3, "of version 3"),
        ("rows", N - 1, "contradicts itself"),
        ("rows", 2**63, "contradicts itself"),
        ("features", 2**31, "contradicts itself"),
        ("blocks", 2**60, "contradicts itself|checksum"),
        ("blocks", 1, "contradicts itself"),
        ("begin", 2**62, "contradicts itself|cut off"),
    ],
)
def test_wrong_header_fields_are_refused(forged_file, field, value, match):
    forged_file.write(**{field: value})
    check_is_refused(forged_file, match)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("offset", 0),
        ("offset", 2**63),
        ("offset", "the same"),
        ("offset", "not aligned"),
        ("rows", 0),
        ("rows", 2**32 - 1),
        ("rows", "one more"),
        ("values", 2**32 - 1),
        ("values", "one more"),
        ("first_row", 0),
        ("first_row", 2**63),
    ],
)
def test_wrong_block_index_is_refused(forged_file, field, value):
    entry = forged_file.index[1]
    if value == "the same":
        value = forged_file.index[0]["offset"]
    elif value == "not aligned":
        value = entry["offset"] + 8
    elif value == "one more":
        value = entry[field] + 1
    entry[field] = value
    forged_file.write(block_crc=False)
    check_is_refused(forged_file, "contradicts itself|block 1 is not what was written|was changed")


def test_wrong_checksum_of_the_index_is_refused(forged_file):
    forged_file.footer = forged_file.footer.replace(b'"mean_square": ', b'"mean_square":9')
    forged_file.write(index_crc=False)
    check_is_refused(forged_file, "its index does not match its checksum")


def test_too_large_json_is_refused(forged_file, monkeypatch):
    monkeypatch.setattr(block_file, "MAX_JSON_BYTES", len(forged_file.footer) - 1)
    forged_file.write()
    check_is_refused(forged_file, "contradicts itself")


@pytest.mark.parametrize(
    "change", [lambda row, starts: row.__setitem__(-1, 2**31), lambda row, starts: starts.__setitem__(2, starts[3] + 1)]
)
def test_blocks_are_validated_at_every_read(sparse_file, change):
    # The file keeps its size and time: the checksum is not computed again, but indices are checked before compiled code.
    sparse_file.write()
    stat = sparse_file.path.stat()
    with BlockFile(sparse_file.path) as file:
        file.read_block(1)
        change_indices(sparse_file, 1, change)
        sparse_file.write()
        os.utime(sparse_file.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        refused("block 1 is not what was written", file.read_block, 1, error=BlockFileError)


@pytest.fixture
def weighted(tmp_path):
    return ForgedFile(tmp_path / "rows", weighted=True)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf, 100.0])
def test_weights_outside_the_bounds_in_the_footer_are_refused(weighted, value):
    weighted.get_parts(1)[1][2] = value
    weighted.write()
    check_is_refused(weighted, "block 1 is not what was written")


@pytest.mark.parametrize(
    "change",
    [
        *({"weights": wrong} for wrong in ([0.0, 2.0, 1.0], [2.0, 1.0, 1.0], [1.0, 2.0], None, [1.0, float("inf"), 1.0])),
        *({"label_weights": wrong} for wrong in ([1.0], [0.0, 1.0], None)),
    ],
)
def test_wrong_weight_statistics_are_refused(weighted, change):
    weighted.footer = json.dumps({**json.loads(weighted.footer), **change}).encode()
    weighted.write()
    check_is_refused(weighted, "contradicts itself")


@pytest.mark.parametrize(
    ("classes", "first"), [(["a"], 0.0), (["a", "b", "c"], 0.0), ("ab", 0.0), (5, 0.0), (["a", "b"], 5.0)], ids=str
)
def test_classes_that_do_not_match_the_labels_are_refused(tmp_path, classes, first):
    with BlockWriter(tmp_path / "rows") as writer:
        writer.add(np.eye(4), np.array([first, 1.0, first, 1.0]))
        writer.meta = {"classes": classes}
    refused("which do not match", OutOfCoreLinearSVC().fit_file, tmp_path / "rows")


@pytest.mark.parametrize("indices", [[0, D], [-1, 2]])
def test_matrices_with_invalid_indices_are_not_written(tmp_path, indices):
    X = sparse.csr_array(np.ones((1, 2)))
    X.resize((1, D))
    X.indices[:] = indices
    with pytest.raises(ValueError, match="feature indices outside 0 to 5"), BlockWriter(tmp_path / "rows") as writer:
        writer.add(X, np.ones(1))
    with pytest.raises(ValueError, match="not complex"), BlockWriter(tmp_path / "rows") as writer:
        writer.add(np.eye(2) * 1j, np.ones(2))
    assert not list(tmp_path.iterdir())
