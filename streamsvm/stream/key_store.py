"""The small models of keys beside a checkpoint: an SQLite file with a block of bytes for each key.

A learner with a model for each key keeps the recently used ones in memory. The others move to this file, and a checkpoint writes
only those that have changed since the last one. A row has a version: the number of the checkpoint that was due when it was
written. The file lists the version of each checkpoint, by the checksum of the checkpoint file, which contains the newest row of
each key up to this version. A changed block is a further row, so earlier checkpoints keep theirs, and the two files need no
common transaction: rows that are newer than the checkpoint are invisible, and deleted by the run that continues from it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.saved import BLOCK_STORE
from streamsvm.files.container import CorruptFileError, ModelFileError
from streamsvm.stream.endpoints import StreamError

FILE_NAME = "keys.sqlite"
_ADVICE = "Restore the whole folder from a copy, or start anew in another folder"
_SCHEMA = [
    "CREATE TABLE blocks (id INTEGER PRIMARY KEY, number INTEGER, key TEXT, version INTEGER, updated INTEGER, checksum, block)",
    "CREATE UNIQUE INDEX by_key ON blocks (number, key, version)",
    "CREATE TABLE checkpoints (checksum TEXT, version INTEGER, number INTEGER, oldest INTEGER)",
    # No checkpoint contains a row if a newer one follows before the next checkpoint, or the key or the table was forgotten.
    "CREATE VIEW unused AS SELECT id, number, key FROM blocks WHERE number < (SELECT min(number) FROM checkpoints)"
    " OR updated < (SELECT min(oldest) FROM checkpoints WHERE number = blocks.number)"
    " OR EXISTS (SELECT 1 FROM blocks newer WHERE number = blocks.number AND key = blocks.key AND version > blocks.version"
    " AND NOT EXISTS (SELECT 1 FROM checkpoints WHERE version >= blocks.version AND version < newer.version))",
]
# With a log of 32 MB, a checkpoint of a few thousand keys need not wait until SQLite has copied it.
_SETTINGS = "PRAGMA cache_size = -16000; PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 8000"
#: Selects the newest row of each key up to a version: a number, or that of a checkpoint or, if this was deleted, of the last one.
_SELECT = """SELECT key, max(version), updated, checksum, block FROM blocks WHERE number = ? AND version <= coalesce(?,
    (SELECT max(version) FROM checkpoints WHERE checksum = ?), (SELECT max(version) FROM checkpoints)) """
#: Writes a row, if possible in place of one that is not used any more.
_INSERT = "REPLACE INTO blocks VALUES ((SELECT max(id) FROM unused WHERE number = ? AND key = ?), ?, ?, ?, ?, ?, ?)"


class KeyStoreError(ModelFileError, StreamError):
    """The models of keys cannot be read or written, for example because the disk is full."""


class Snapshot:
    """The blocks that a model contains: those of its newest checkpoint, which has a ``checksum`` and a ``version`` (0: none), and
    those that the model has written since.
    """

    def __init__(self, checksum: str = "") -> None:
        self.checksum: str = checksum
        self.version: int = 0


class KeyTable(NamedTuple):
    """The blocks of one learner in a `KeyStore`. Its saved state contains the ``number`` of the table."""

    store: KeyStore
    snapshot: Snapshot
    number: int

    def read(self, keys: Iterable[Any], parse: Callable[[bytes], Any] = bytes) -> dict[Any, Any]:
        """Return the newest stored block of each key, converted by ``parse``, which raises a ValueError if it is corrupt; keys
        without one are left out. A key is a text, an int, or a finite float that is not whole.
        """
        values = json.dumps([json.dumps(key) for key in keys])
        return {row[0]: row[2] for row in self._select("AND key IN (SELECT value FROM json_each(?)) GROUP BY key", values, parse)}

    def read_recent(self, limit: int, parse: Callable[[bytes], Any] = bytes) -> Iterator[tuple[Any, int, Any]]:
        """Yield (key, number of its last update, block) of at most ``limit`` keys, those that were updated last first. Blocks are
        converted by ``parse``, as in `read`.
        """
        return self._select("GROUP BY key ORDER BY updated DESC LIMIT ?", limit, parse)

    def _select(self, condition: str, value: Any, parse: Callable[[bytes], Any]) -> Iterator[tuple[Any, int, Any]]:
        """Yield (key, number of its last update, block) of the keys that fulfil a ``condition`` in SQL with a ``value``."""
        last = self.snapshot.version + (self.snapshot is self.store.current) if self.store.check_owned else None
        with self.store.connect() as connection:
            rows = connection.execute(_SELECT + condition, (self.number, last, self.snapshot.checksum, value))
            for text, version, updated, checksum, block in rows:
                # A list or another object that cannot be a key has no hash.
                is_valid = checksum == _compute_checksum(self.number, text, version, updated, block)
                if not is_valid or (key := json.loads(text)).__hash__ is None:
                    raise ValueError(f"the checksum of the key {text} is wrong")
                yield key, updated, parse(block)

    def write(self, blocks: Iterable[tuple[Any, int, bytes]], oldest: int = 0) -> None:
        """Write blocks of (key, number of its last update, block): all of them, or none if an error is raised. Keys that were
        last updated before ``oldest`` may be deleted. If the store is only read, nothing happens.
        """
        if self.store.check_owned:
            with self.store.connect(self.snapshot) as connection:
                version = self.snapshot.version + 1
                rows = ((self.number, json.dumps(key), version, updated, block) for key, updated, block in blocks)
                connection.executemany(_INSERT, ((*row[:2], *row[:4], _compute_checksum(*row), row[4]) for row in rows))
            self.store.oldest[self.number] = oldest


class KeyStore:
    """The file of the models of keys in a folder of checkpoints. It is opened when a model needs it.

    ``check_owned`` is called in each transaction that writes, and raises an error if another process has taken over the folder.
    If it is None, the file is only read.
    """

    def __init__(self, folder: Path, check_owned: Callable[[], None] | None = None) -> None:
        self._path, self.check_owned = folder / FILE_NAME, check_owned
        self._connection: sqlite3.Connection | None = None
        self._opened = Snapshot()  # of the model that is loaded
        self.current: Any = None  # of the model that was written last
        # Number of tables that were created; id where to look for unused rows; number of changes up to the newest checkpoint.
        self._n_attached = self._next_id = self._n_changes = 0
        #: By the number of each table that was written: the number of the update before which keys are forgotten.
        self.oldest: dict[int, int] = {}

    @contextlib.contextmanager
    def use(self, checksum: str = "") -> Iterator[None]:
        """Context manager: a model that is loaded reads its blocks here, as of the checkpoint with the ``checksum``; a model that
        is saved writes them here.
        """
        self._opened, self.oldest = Snapshot(checksum) if checksum else self._opened, {}
        token = BLOCK_STORE.set(self)
        try:
            yield
        finally:
            BLOCK_STORE.reset(token)

    def open(self, number: int) -> KeyTable:
        """Open the table ``number`` of the checkpoint that is being read. Raise a CorruptFileError if its blocks are missing."""
        if self._opened is not self.current:
            if self._path.is_file():
                with self.connect() as connection:
                    query = "SELECT max(version) FROM checkpoints WHERE checksum = ?"
                    self._opened.version = int(connection.execute(query, (self._opened.checksum,)).fetchone()[0] or 0)
            if not self._opened.version:
                copying = "(streamsvm checkpoints FOLDER --copy FILE copies both)"
                raise CorruptFileError(f"the models of its keys are not in {self._path} {copying}. {_ADVICE}")
        return KeyTable(self, self._opened, number)

    def attach(self, table: KeyTable | None) -> KeyTable:
        """Return ``table`` if it is of this store, else a new table."""
        if table is None or table.store is not self:
            snapshot, self._n_attached = self.current or Snapshot(), self._n_attached + 1
            with self.connect(snapshot):  # so that its version is known
                table = KeyTable(self, snapshot, (snapshot.version << 20) + self._n_attached)
        return table

    def commit(self, checksum: str) -> None:
        """Make the written blocks part of the checkpoint file with the ``checksum``, which is about to be written."""
        with self.connect(self.current, "FULL") as connection:
            if not self._path.is_file():
                raise ValueError("it was deleted while it was in use")
            rows = [(checksum, self.current.version + 1, *item) for item in self.oldest.items()]
            connection.executemany("INSERT INTO checkpoints VALUES (?, ?, ?, ?)", rows)
            self._drop_deleted(connection, checksum)
            # Look for unused rows in the next part of the file: with idle keys, of twice as many rows as were written. Otherwise,
            # most unused rows are overwritten later.
            (start,) = connection.execute("SELECT coalesce(min(id), 0) FROM blocks WHERE id >= ?", (self._next_id,)).fetchone()
            n_written = connection.total_changes - self._n_changes
            self._next_id = start + (2 * n_written if any(self.oldest.values()) else n_written // 4)
            query = "DELETE FROM blocks WHERE id IN (SELECT id FROM unused WHERE id >= ? AND id < ?)"
            self._n_changes = connection.execute(query, (start, self._next_id)).connection.total_changes
        self.current.checksum = checksum
        self.current.version += 1

    def _drop_deleted(self, connection: sqlite3.Connection, new_checksum: str = "") -> None:
        """Delete checkpoints from the table that have no file, except the one with ``new_checksum``, which is written next."""
        files = filter(Path.is_file, self._path.parent.glob("checkpoint-*"))
        checksums = [np.fromfile(file, np.uint8, offset=max(file.stat().st_size - 32, 0)).tobytes() for file in files]
        kept = json.dumps([new_checksum, *(checksum.hex() for checksum in checksums)])
        connection.execute("DELETE FROM checkpoints WHERE checksum NOT IN (SELECT value FROM json_each(?))", (kept,))

    def close(self) -> None:
        """Close the file. Models that were loaded can still read their blocks."""
        self.check_owned = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextlib.contextmanager
    def connect(self, snapshot: Snapshot | None = None, synchronous: str = "NORMAL") -> Iterator[sqlite3.Connection]:
        """Context manager: the connection to the file; with ``snapshot``, in a transaction that writes blocks of this model. It
        survives a power loss if ``synchronous`` is FULL. Errors of SQLite, and invalid contents, raise a KeyStoreError.
        """
        try:
            connection = self._connection or self._open_file()
            with connection if snapshot else contextlib.nullcontext():
                if snapshot and self.check_owned:
                    connection.execute(f"PRAGMA synchronous = {synchronous}")
                    connection.execute("BEGIN IMMEDIATE")
                    self.check_owned()
                    if snapshot is not self.current:
                        self._drop_deleted(connection)
                        query = "SELECT coalesce(max(version), 0) FROM checkpoints"
                        snapshot.version = snapshot.version or connection.execute(query).fetchone()[0]
                        # Later rows are of a run that was killed, or from before a rollback.
                        connection.execute("DELETE FROM blocks WHERE version > ?", (snapshot.version,))
                        connection.execute("DELETE FROM checkpoints WHERE version > ?", (snapshot.version,))
                yield connection
            if snapshot:
                self._opened = self.current = snapshot
        except (sqlite3.Error, ValueError, TypeError, OverflowError, RecursionError) as error:
            advice = "" if isinstance(error, sqlite3.OperationalError) else f". {_ADVICE}"
            advice += ": end the other process that writes to it" * ("locked" in str(error))
            raise KeyStoreError(f"{self._path}: {error}{advice}") from error

    def _open_file(self) -> sqlite3.Connection:
        """Open the file, or create it if this store writes. Raise a ValueError if it is a link, a pipe or of another program."""
        if any(file.is_symlink() or file.is_fifo() for file in self._path.parent.glob(f"{FILE_NAME}*")):
            raise ValueError("it is a link or a pipe")
        can_write = os.access(self._path.parent, os.W_OK) or self._path.with_name(f"{FILE_NAME}-wal").exists()
        mode = "mode=rwc" if self.check_owned else "mode=ro" if can_write else "immutable=1"  # else SQLite writes its log there
        uri = f"{self._path.absolute().as_uri()}?{mode}"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        weakref.finalize(self, connection.close)
        # VACUUM changes the order of the schema.
        schema = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
        if self.check_owned and schema in (set(), {*_SCHEMA}):
            connection.executescript(f"{_SETTINGS}; BEGIN; {'; '.join(_SCHEMA[len(schema) :])}; COMMIT")
        elif schema != {*_SCHEMA}:
            raise ValueError("it is not a file of this version of streamsvm")
        self._connection = connection
        return connection


def _compute_checksum(number: int, key: str, version: int, updated: int, block: bytes) -> int:
    """Return the checksum of a row."""
    return zlib.crc32(block, zlib.crc32(f"{number} {key} {version} {updated}".encode()))
