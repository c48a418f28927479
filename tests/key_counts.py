"""A learner of a few bytes for each key, which stores them as keyed learners do: the slow and obvious twin of an arena."""

import struct
from collections import OrderedDict

from river import base

from streamsvm.core.saved import BLOCK_STORE


def parse_key(value):
    return int(value) if isinstance(value, int) or (isinstance(value, float) and value.is_integer()) else value


class KeyCounts(base.Classifier):
    """Predicts the label that was more frequent in the rows of a key, with ``max_keys`` keys in memory."""

    def __init__(self, max_keys=10, idle=None, key="device"):
        self.max_keys, self.idle, self.key = max_keys, idle, key
        self.clock, self.blocks, self.changed, self.table = 0, OrderedDict(), set(), None

    @property
    def oldest(self):
        return 0 if self.idle is None else self.clock - self.idle

    def find(self, key):
        """Return (clock of the last update, rows with True, rows) of a key; None if it is unknown or was idle."""
        block = self.blocks.get(key) or (self.table and self.table.read([key]).get(key))
        counts = block and struct.unpack("<qqq", block[:24])
        return counts if counts and counts[0] >= self.oldest else None

    def learn_one(self, x, y):
        self.clock += 1
        key = parse_key(x[self.key])
        _, positive, rows = self.find(key) or (0, 0, 0)
        self.blocks[key] = struct.pack("<qqq", self.clock, positive + y, rows + 1) + bytes(40)
        self.changed.add(key)
        self.blocks.move_to_end(key)
        if len(self.blocks) > self.max_keys:
            evicted = [*self.blocks][: max(self.max_keys // 5, 1)]
            if self.table is not None:
                self.table.write(self.list_changed(evicted), self.oldest)
            for key in evicted:
                del self.blocks[key]
            self.changed.difference_update(evicted)

    def predict_one(self, x, **kwargs):
        counts = self.find(parse_key(x[self.key]))
        return counts and 2 * counts[1] > counts[2]

    def list_changed(self, keys):
        return [(key, struct.unpack_from("<q", self.blocks[key])[0], self.blocks[key]) for key in keys if key in self.changed]

    def read_all(self):
        """Return the blocks of all keys, in memory and stored."""
        stored = [] if self.table is None else self.table.read_recent(-1)
        return {key: block for key, _, block in stored} | dict(self.blocks)

    def __getstate__(self):
        state = {name: getattr(self, name) for name in ("max_keys", "idle", "key", "clock")}
        if (store := BLOCK_STORE.get()) is None:
            stored = {} if self.table is None else {key: block for key, _, block in self.table.read_recent(self.max_keys)}
            return state | {"blocks": [*(stored | self.blocks).items()][-self.max_keys :]}
        table = store.attach(self.table)
        if table is not self.table:
            self.changed = {*self.blocks}
        self.table = table
        self.table.write(self.list_changed([*self.blocks]), self.oldest)
        self.changed.clear()
        return state | {"table": self.table.number}

    def __setstate__(self, state):
        self.table = BLOCK_STORE.get().open(state.pop("table")) if "table" in state else None
        self.blocks = OrderedDict(state.pop("blocks", ()))
        self.changed = set(self.blocks)
        vars(self).update(state)
