"""A block file whose parts can be changed, under checksums that are right."""

import zlib

import numpy as np
from scipy import sparse

from streamsvm.linear import BlockFile, BlockWriter, block_file

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
        size = self.header["blocks"] * block_file.INDEX.itemsize
        self.index = np.frombuffer(bytes(self.data[begin : begin + size]), block_file.INDEX).copy()
        self.about = bytes(self.data[begin + size : self.header["end"]])

    def parts(self, number):
        """Where labels, weights, starts, indices and values of a block are, as arrays that can be changed."""
        entry = self.index[number]
        at, n, values = (int(entry[name]) for name in ("begin", "rows", "values"))
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
        self.data[: len(packed) + block_file.CRC.size] = packed + block_file.CRC.pack(zlib.crc32(packed))
        self.path.write_bytes(bytes(self.data[:begin]) + tail)

    def read(self):
        with BlockFile(self.path) as file:
            return [file.block(number) for number in range(len(file))]
