"""Arrays in NumPy's format: of every type, order, version and writer."""

import io
import struct

import numpy as np
import pytest

from row_tables import float32_table, npy, same
from streamsvm_kafka import NpyCodec


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">f8", "f2", "i1", "u1", "<i2", ">i4", "<u4", "<i8", ">u8", "?"])
def test_npy_of_every_type(dtype, order):
    table = np.array([[0, 1, 1], [1, 0, 0]]).astype(dtype, order=order)
    rows = NpyCodec(2).decode_rows(npy(table))
    assert same(rows, float32_table((0, 1), [[0, 1], [1, 0]], [1, 0]))
    assert {column.dtype for column in rows.columns} == {np.dtype(np.float32)}


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_of_every_version(version):
    file = io.BytesIO()
    np.lib.format.write_array(file, np.ones((2, 2)), version=version)
    assert len(NpyCodec(1).decode_rows(file.getvalue())) == 2


def test_npy_of_other_writers():
    header = b"""{"shape": (1,2), "descr": "<f4", 'fortran_order':False}\n"""
    value = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack("<2f", 0.5, 1)
    assert same(NpyCodec(1).decode_rows(value), float32_table((0,), [[0.5]], [1]))


def test_npy_labels():
    table = np.array([[0, np.nan], [0, 2**53 + 2.0], [0, 0.25]])
    assert NpyCodec(1).decode_rows(npy(table)).y == [None, 2**53 + 2, 0.25]
    assert NpyCodec(1).decode_rows(npy(table[:1])).y is None
    assert NpyCodec(1).decode_rows(npy(table[:0])).y is None
    assert NpyCodec(1).decode_rows(npy(np.array([[0, 2**64 - 1]], np.uint64))).y == [2**64 - 1]
