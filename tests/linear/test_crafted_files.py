"""Block files that somebody made, with checksums that are right: no count, place or index of theirs is trusted."""

import json
import os

import numpy as np
import pytest
from scipy import sparse

from forged_blocks import D, Forged, N
from refused import refused
from streamsvm.linear import BlockFile, BlockFileError, BlockWriter, OutOfCoreLinearSVC, block_file


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
        ("begin", 0),
        ("begin", 3),
        ("begin", 2**63),
        ("begin", "the same"),
        ("begin", "not aligned"),
        ("rows", 0),
        ("rows", 2**32 - 1),
        ("rows", "one more"),
        ("values", 2**32 - 1),
        ("values", "one more"),
        ("first", 0),
        ("first", 2**63),
    ],
)
def test_an_index_that_is_not_true(forged, field, value):
    entry = forged.index[1]
    if value == "the same":
        value = forged.index[0]["begin"]
    elif value == "not aligned":
        value = entry["begin"] + 8
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
    monkeypatch.setattr(block_file, "LARGEST_JSON", len(forged.about) - 1)
    forged.write()
    unread(forged, "contradicts itself")


def test_contents_that_change_behind_the_back_of_a_reader(some):
    # Of the same size and time: no checksum is computed again, but compiled code takes nothing unseen.
    some.write()
    stat = some.path.stat()
    with BlockFile(some.path) as file:
        file.block(1)
        change_indices(some, 1, lambda row, starts: row.__setitem__(-1, 2**31))
        some.write()
        os.utime(some.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        refused("block 1 is not what was written", file.block, 1, error=BlockFileError)


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
    refused("do not fit together", OutOfCoreLinearSVC().fit_file, tmp_path / "rows")


@pytest.mark.parametrize("indices", [[0, D], [-1, 2]])
def test_matrices_whose_indices_lead_nowhere_are_not_written(tmp_path, indices):
    X = sparse.csr_array(np.ones((1, 2)))
    X.resize((1, D))
    X.indices[:] = indices
    with pytest.raises(ValueError, match="out of its 6 features"), BlockWriter(tmp_path / "rows") as writer:
        writer.add(X, np.ones(1))
    with pytest.raises(ValueError, match="not complex"), BlockWriter(tmp_path / "rows") as writer:
        writer.add(np.eye(2) * 1j, np.ones(2))
    assert not list(tmp_path.iterdir())
