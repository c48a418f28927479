"""Arrow streams that no writer makes."""

from __future__ import annotations

import struct

_SIZES = {"h": 2, "B": 1, "I": 4, "q": 8}


class _Buffer:
    """A FlatBuffer, written front to back: offsets can only point onward."""

    def __init__(self) -> None:
        self.bytes = bytearray(4)  # the place of the root

    def align(self, width: int) -> int:
        self.bytes += b"\0" * (-len(self.bytes) % width)
        return len(self.bytes)

    def table(self, fields: dict[int, tuple[str, int]]) -> tuple[int, dict[int, int]]:
        """Write a table of fields by number; return its place, and those of the fields."""
        places, size = {}, 4
        for field, (kind, _) in fields.items():
            size += -size % _SIZES[kind]
            places[field] = size
            size += _SIZES[kind]
        fields_at, count = self.align(8), max(fields) + 1
        self.bytes += struct.pack(f"<HH{count}H", 4 + 2 * count, size, *(places.get(field, 0) for field in range(count)))
        at = self.align(8)
        body = bytearray(struct.pack("<i", at - fields_at)) + bytes(size - 4)
        for field, (kind, value) in fields.items():
            struct.pack_into(f"<{kind}", body, places[field], value)
        self.bytes += body
        return at, {field: at + place for field, place in places.items()}

    def refer(self, place: int, at: int | None = None) -> None:
        """Let an offset point somewhere; without ``at`` to what is written next."""
        struct.pack_into("<I", self.bytes, place, (self.align(4) if at is None else at) - place)


def one_field_many_times(count: int, name: bytes) -> bytes:
    """A stream of no rows, whose schema has a column of floats ``count`` times, in few bytes: all are one field."""
    buffer = _Buffer()
    at, message = buffer.table({0: ("h", 4), 1: ("B", 1), 2: ("I", 0), 3: ("q", 0)})
    buffer.refer(0, at)
    at, schema = buffer.table({0: ("h", 0), 1: ("I", 0)})
    buffer.refer(message[2], at)
    buffer.refer(schema[1])
    items = len(buffer.bytes) + 4
    buffer.bytes += struct.pack("<I", count) + bytes(4 * count)
    at, field = buffer.table({0: ("I", 0), 1: ("B", 1), 2: ("B", 3), 3: ("I", 0), 5: ("I", 0)})
    for i in range(count):
        buffer.refer(items + 4 * i, at)
    buffer.refer(field[0])
    buffer.bytes += struct.pack("<I", len(name)) + name + b"\0"
    buffer.refer(field[5])
    buffer.bytes += bytes(4)
    at, _ = buffer.table({0: ("h", 1)})
    buffer.refer(field[3], at)
    buffer.align(8)
    return b"\xff\xff\xff\xff" + struct.pack("<i", len(buffer.bytes)) + bytes(buffer.bytes) + b"\xff\xff\xff\xff\0\0\0\0"
