"""Block files that somebody made, with checksums that are right: no count, place or index of theirs is trusted."""

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


class Forged:
    """A block file whose parts can be changed, and that is written with the checksums of what they are then."""

    def __init__(self, path, dense=False, weighted=False):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(N, D)) * (rng.random((N, D)) < (1.0 if dense else 0.5))
        with BlockWriter(path, dense=dense, weighted=weighted, block_bytes=500) as writer:
            weights = {"weights": rng.uniform(0.5, 2.0, N)} if weighted else {}
            writer.add(X if dense else sparse.csr_array(X), np.arange(N) % 2.0, **weights)
        self.path, self.data = path, bytearray(path.read_bytes())
        self.header = dict(zip(FIELDS, block_file.HEADER.unpack_from(self.data), strict=True))
        begin = self.header["begin"]
        size = self.header["blocks"] * block_file.INDEX_DTYPE.itemsize
        self.index = np.frombuffer(bytes(self.data[begin : begin + size]), block_file.INDEX_DTYPE).copy()
        self.about = bytes(self.data[begin + size : self.header["end"]])

    def parts(self, number):
        """Where labels, weights, starts, indices and values of a block are, as arrays that can be changed."""
        entry = self.index[number]
        at, n, values = (int(entry[name]) for name in ("offset", "rows", "values"))
        sizes = (0, 0, 4 * values) if self.header["dense"] else (4 * (n + 1), 4 * values, 4 * values)
        sizes, parts = (8 * n, 8 * n if self.header["version"] == 2 else 0, *sizes), []
        for size, kind in zip(sizes, ("<f8", "<f8", "<u4", "<u4", "<f4"), strict=True):
            parts.append(np.frombuffer(memoryview(self.data)[at : at + size], kind))
            at += size
        return parts

    def write(self, *, block_crc=True, index_crc=True, **untrue):
        """Write the file, with fields of its header that are not true."""
        header, begin = self.header, self.header["begin"]
        for number, entry in enumerate(self.index):
            if block_crc:
                entry["crc"] = zlib.crc32(b"".join(part.tobytes() for part in self.parts(number)))
        tail = self.index.tobytes() + self.about
        header["end"] = begin + len(tail)
        if index_crc:
            header["crc"] = zlib.crc32(tail)
        packed = block_file.HEADER.pack(*(header | untrue).values())
        self.data[: len(packed) + block_file.CRC_STRUCT.size] = packed + block_file.CRC_STRUCT.pack(zlib.crc32(packed))
        self.path.write_bytes(bytes(self.data[:begin]) + tail)

    def read(self):
        with BlockFile(self.path) as file:
            return [file.read_block(number) for number in range(len(file))]


@pytest.fixture(params=[False, True], ids=["sparse", "dense"])
def forged(tmp_path, request):
    return Forged(tmp_path / "rows", request.param)


@pytest.fixture
def some(tmp_path):
    return Forged(tmp_path / "rows")


def test_a_file_that_is_not_changed_is_read(forged):
    before = forged.path.read_bytes()
    forged.write()
    assert forged.path.read_bytes() == before
    assert sum(len(block.labels) for block in forged.read()) == N


def unread(forged, match):
    refused(match, forged.read, error=BlockFileError)
    refused(match, OutOfCoreLinearSVC().fit_file, forged.path, error=BlockFileError)


@pytest.mark.parametrize("part", ["labels", "values"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(forged, part, value):
    forged.parts(1)[0 if part == "labels" else -1][2] = value
    forged.write()
    unread(forged, "block 1 is not what was written")


def change_indices(some, number, change):
    *_, starts, indices, _ = some.parts(number)
    row = int(np.flatnonzero(np.diff(starts.astype(int)) >= 2)[0])
    change(indices[starts[row] : starts[row + 1]], starts)


@pytest.mark.parametrize(
    ("number", "change"),
    [
        *((1, lambda row, starts, value=value: row.__setitem__(-1, value)) for value in (D, D + 1, 2**31 - 1, 2**31, 2**32 - 1)),
        (0, lambda row, starts: row.__setitem__(slice(None), row[::-1].copy())),  # features that do not rise
        (0, lambda row, starts: row.__setitem__(slice(None), row[0])),
        (1, lambda row, starts: starts.__setitem__(0, 1)),
        (1, lambda row, starts: starts.__setitem__(-1, starts[-1] - 1)),
        (1, lambda row, starts: starts.__setitem__(slice(2, 4), [starts[4], starts[1]])),
        (1, lambda row, starts: starts.__setitem__(2, 2**32 - 1)),
    ],
)
def test_indices_and_starts_that_lead_nowhere(some, number, change):
    change_indices(some, number, change)
    some.write()
    unread(some, f"block {number} is not what was written")


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
def test_a_header_that_is_not_true(forged, field, value, match):
    forged.write(**{field: value})
    unread(forged, match)


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
def test_an_index_that_is_not_true(forged, field, value):
    entry = forged.index[1]
    if value == "the same":
        value = forged.index[0]["offset"]
    elif value == "not aligned":
        value = entry["offset"] + 8
    elif value == "one more":
        value = entry[field] + 1
    entry[field] = value
    forged.write(block_crc=False)
    unread(forged, "contradicts itself|block 1 is not what was written|was changed")


def test_an_index_that_does_not_match_its_checksum(forged):
    forged.about = forged.about.replace(b'"mean_square": ', b'"mean_square":9')
    forged.write(index_crc=False)
    unread(forged, "its index does not match its checksum")


def test_json_that_is_too_large(forged, monkeypatch):
    monkeypatch.setattr(block_file, "MAX_JSON_BYTES", len(forged.about) - 1)
    forged.write()
    unread(forged, "contradicts itself")


@pytest.mark.parametrize(
    "change", [lambda row, starts: row.__setitem__(-1, 2**31), lambda row, starts: starts.__setitem__(2, starts[3] + 1)]
)
def test_contents_that_change_behind_the_back_of_a_reader(some, change):
    # Of the same size and time: no checksum is computed again, but compiled code takes nothing unseen.
    some.write()
    stat = some.path.stat()
    with BlockFile(some.path) as file:
        file.read_block(1)
        change_indices(some, 1, change)
        some.write()
        os.utime(some.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        refused("block 1 is not what was written", file.read_block, 1, error=BlockFileError)


@pytest.fixture
def weighted(tmp_path):
    return Forged(tmp_path / "rows", weighted=True)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf, 100.0])
def test_weights_that_are_none_or_out_of_what_the_file_says(weighted, value):
    weighted.parts(1)[1][2] = value
    weighted.write()
    unread(weighted, "block 1 is not what was written")


@pytest.mark.parametrize(
    "change",
    [
        *({"weights": wrong} for wrong in ([0.0, 2.0, 1.0], [2.0, 1.0, 1.0], [1.0, 2.0], None, [1.0, float("inf"), 1.0])),
        *({"label_weights": wrong} for wrong in ([1.0], [0.0, 1.0], None)),
    ],
)
def test_what_a_file_says_of_weights(weighted, change):
    weighted.about = json.dumps({**json.loads(weighted.about), **change}).encode()
    weighted.write()
    unread(weighted, "contradicts itself")


@pytest.mark.parametrize(
    ("classes", "first"), [(["a"], 0.0), (["a", "b", "c"], 0.0), ("ab", 0.0), (5, 0.0), (["a", "b"], 5.0)], ids=str
)
def test_classes_that_do_not_fit_the_labels(tmp_path, classes, first):
    with BlockWriter(tmp_path / "rows") as writer:
        writer.add(np.eye(4), np.array([first, 1.0, first, 1.0]))
        writer.meta = {"classes": classes}
    refused("which do not match", OutOfCoreLinearSVC().fit_file, tmp_path / "rows")


@pytest.mark.parametrize("indices", [[0, D], [-1, 2]])
def test_matrices_whose_indices_lead_nowhere_are_not_written(tmp_path, indices):
    X = sparse.csr_array(np.ones((1, 2)))
    X.resize((1, D))
    X.indices[:] = indices
    with pytest.raises(ValueError, match="feature indices outside 0 to 5"), BlockWriter(tmp_path / "rows") as writer:
        writer.add(X, np.ones(1))
    with pytest.raises(ValueError, match="not complex"), BlockWriter(tmp_path / "rows") as writer:
        writer.add(np.eye(2) * 1j, np.ones(2))
    assert not list(tmp_path.iterdir())
