"""The models of keys beside checkpoints: kills, rollbacks, copies, readers, full disks, and damaged or foreign files."""

import contextlib
import copy
import functools
import itertools
import math
import os
import pickle
import random
import shutil
import signal
import sqlite3
import time
from pathlib import Path

import numpy as np
import pytest

from key_counts import KeyCounts
from killing import fork_with_pipe
from lists import OF_RELEASE, first
from refused import raises
from streamsvm import BSGDClassifier
from streamsvm.learners.keyed import KeyedClassifier
from streamsvm.stream import (
    CheckpointError,
    CheckpointFolder,
    FollowedFolder,
    IterableSource,
    LearningLoop,
    StreamError,
    checkpoint_folder,
    key_store,
    load,
)
from streamsvm.stream.checkpoint import CorruptCheckpointError, TakenOverError, find_saved, list_checkpoints, read_checkpoint
from streamsvm.stream.key_store import FILE_NAME
from streamsvm.stream.prediction import FollowedModel

FAILURES = Path(__file__).parents[2] / "docs" / "failures.md"


def learn(model, keys):
    for key in keys:
        model.learn_one({model.key: key}, len(str(key)) % 2 > 0)
    return model


def save(folder, model, rows):
    return folder.save(model, None, rows=rows, position={})


def query(path, sql):
    with contextlib.closing(sqlite3.connect(path / FILE_NAME)) as connection, connection:
        return connection.execute(sql).fetchall()


@pytest.fixture
def folder(tmp_path):
    with CheckpointFolder(tmp_path / "state", trusted=True) as folder:
        yield folder


@pytest.fixture
def model(folder):
    """A model of 30 keys, 5 of them in memory, with a checkpoint after 40 rows."""
    model = KeyCounts(5)
    folder.check(model, None)
    save(folder, learn(model, [*range(30), *range(10)]), 40)
    return model


@pytest.mark.parametrize("seed", first(1, range(20)))
def test_resumed_models_equal_one_with_all_keys_in_memory(tmp_path, seed):
    # A run with kills, rollbacks and resets of the model. All checkpoints are read again.
    rng = random.Random(seed)
    twin, model, rows, expected = KeyCounts(10**9), KeyCounts(6), 0, {}
    folder = CheckpointFolder(tmp_path, trusted=True, keep=3)
    folder.check(model, None)
    for _ in range(40):
        n, names = rng.randrange(25), [2**70, "\ud800", "", math.inf, -0.0, "1", 1, True, 1.5, -7]
        keys = [rng.choice((rng.randrange(40), float(rng.randrange(9)), rng.choice(names))) for _ in range(n)]
        learn(model, keys)
        learn(twin, keys)
        rows += n
        action = rng.choice(("save", "save", "save", "learn", "kill", "roll back", "reset"))
        if action == "save":
            save(folder, model, rows)
            expected[rows] = twin.read_all()
            expected = {saved.rows: expected[saved.rows] for saved in list_checkpoints(tmp_path)}
            for saved in list_checkpoints(tmp_path):
                assert saved.load(trusted=True).model.read_all() == expected[saved.rows]
        elif action == "reset":
            model, twin = KeyCounts(6), KeyCounts(10**9)
            folder.check(model, None)
        elif action != "learn" and expected:
            if action == "roll back":
                folder.roll_back(find_saved(tmp_path, list_checkpoints(tmp_path), rng.choice([*expected])))
            folder.close()  # without a checkpoint of the last rows
            folder = CheckpointFolder(tmp_path, trusted=True)
            newest = folder.newest()
            model, rows = newest.model, newest.header["rows"]
            expected = {number: blocks for number, blocks in expected.items() if number <= rows}
            assert model.read_all() == expected[rows]
            twin = KeyCounts(10**9)
            twin.clock, twin.blocks = model.clock, type(twin.blocks)(expected[rows])
    folder.close()


@pytest.mark.parametrize("idle", [None, 100])
def test_the_file_stays_small(folder, idle):
    # Without idle, 30 keys change all the time. With it, no key comes again.
    model, numbers = KeyCounts(20, idle), itertools.count()
    for step in range(40):
        save(folder, learn(model, (next(numbers) if idle else random.randrange(30) for _ in range(25))), 25 * step)
    assert query(folder.path, "SELECT count(*) FROM blocks")[0][0] <= (500 if idle else 150)


def test_only_changed_blocks_are_written(folder, model):
    learn(model, [7, 8])
    save(folder, model, 42)
    versions = query(folder.path, "SELECT version, count(*) FROM blocks GROUP BY version")
    assert versions == [(1, 30), (2, 2)]
    assert max(file.stat().st_size for file in folder.path.glob("*.ckpt")) < 3000


def test_a_vacuum_of_the_file_changes_nothing(folder, model):
    folder.close()
    blocks = query(folder.path, "SELECT * FROM blocks")
    with contextlib.closing(sqlite3.connect(folder.path / FILE_NAME, isolation_level=None)) as connection:
        connection.execute("VACUUM")
    assert query(folder.path, "SELECT * FROM blocks") == blocks
    with CheckpointFolder(folder.path, trusted=True) as again:
        save(again, learn(again.newest().model, [7, 8]), 42)
    assert query(folder.path, "SELECT version, count(*) FROM blocks GROUP BY version") == [(1, 30), (2, 2)]


class Killed(BaseException):
    """Stands for a SIGKILL: no handler of errors runs."""


def test_a_kill_between_the_two_files(folder, model, monkeypatch):
    expected = model.read_all()
    learn(model, range(15, 45))
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_folder, "write_file", lambda path, data: (_ for _ in ()).throw(Killed))
        raises(None, save, folder, model, 70, error=Killed)
    folder.close()
    with CheckpointFolder(folder.path, trusted=True) as resumed:
        model = resumed.newest().model
        assert model.read_all() == expected
        save(resumed, learn(model, range(15, 45)), 70)
    twin = learn(KeyCounts(100), [*range(30), *range(10), *range(15, 45)])
    assert load(folder.path, trusted=True).read_all() == twin.read_all()


def test_a_kill_between_the_first_two_files(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_folder, "write_file", lambda path, data: (_ for _ in ()).throw(Killed))
        raises(None, learn_keys, tmp_path / "killed", 120, 60, 10, error=Killed)
    assert learn_keys(tmp_path / "killed", 120, 60, 10) == learn_keys(tmp_path / "whole", 120, 60, 10)


def test_a_file_that_is_deleted_while_it_is_in_use_ends_a_run(folder, model):
    for file in folder.path.glob("keys.sqlite*"):
        file.unlink()
    raises("keys.sqlite: it was deleted while it was in use. Restore", save, folder, model, 50, error=CheckpointError)


def test_a_full_disk(folder, model):
    expected, connection = model.read_all(), folder._keys._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    raises("full", learn, model, range(100, 1000), error=StreamError)
    raises("was not written.*full", save, folder, model, 100, error=CheckpointError)
    connection.execute("PRAGMA max_page_count = 100000")
    assert {key: block for key, block in model.read_all().items() if key in expected} == expected  # nothing was lost
    save(folder, model, 100)
    assert load(folder.path, trusted=True).read_all() == model.read_all()


def test_a_full_disk_ends_a_run_that_resumes(tmp_path):
    def run(folder, n_pages):
        rows = [({"device": i * 7 % 300}, i % 3 == 0) for i in range(900)]
        with CheckpointFolder(folder, trusted=True) as checkpoints:
            loop = LearningLoop(IterableSource(rows), KeyCounts(20), checkpoints=checkpoints, checkpoint_every=300)
            checkpoints._keys._connection.execute(f"PRAGMA max_page_count = {n_pages}")
            loop.run()
            return loop.model.read_all()

    raises("keys.sqlite: database or disk is full", run, tmp_path / "full", 14, error=StreamError)
    assert list_checkpoints(tmp_path / "full")
    assert run(tmp_path / "full", 10**6) == run(tmp_path / "whole", 10**6)
    assert max((tmp_path / "full").glob("*.ckpt")).read_bytes() == max((tmp_path / "whole").glob("*.ckpt")).read_bytes()


def test_a_loop_that_resets_its_model_stores_the_keys_of_the_new_one(folder):
    rows = [({"device": i % 40}, i % 40 < 10) for i in range(200)]
    loop = LearningLoop(IterableSource(rows), KeyCounts(5), checkpoints=folder)
    loop.drift = type(
        "Drift", (), {"is_reset_due": False, "update": lambda *_: None, "drifts": 0, "detector": None, "state": {}}
    )()
    loop.run_step(100)
    loop.drift.is_reset_due = True
    loop.run_step(100)
    assert loop.model.read_all() == learn(KeyCounts(100), [row["device"] for row, _ in rows[101:]]).read_all()
    loop.run()
    folder.newest()
    assert folder.newest().model.read_all() == loop.model.read_all()


@pytest.mark.parametrize("copy_model", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_have_the_latest_keys_in_memory(folder, model, copy_model):
    for source in (model, folder.newest().model, load(folder.path, trusted=True)):
        copied = copy_model(source)
        assert copied.table is None
        assert copied.read_all() == {key: block for key, block in model.read_all().items() if key in range(5, 10)}


def test_a_copied_checkpoint_contains_the_latest_keys(folder, model, tmp_path, monkeypatch):
    monkeypatch.setattr(KeyCounts, "__module__", "streamsvm.learners.keyed")
    monkeypatch.setattr("streamsvm.files.codecs.OWN_CLASSES", {"KeyCounts": "streamsvm.learners.keyed"})
    monkeypatch.setattr("streamsvm.files.codecs._find_object", lambda module, name: KeyCounts)
    path = save(folder, model, 41)
    (tmp_path / "copy.ckpt").write_bytes(find_saved("", FollowedFolder(folder.path).history()).read())
    assert {*load(tmp_path / "copy.ckpt").read_all()} == {*range(5, 10)}
    with CheckpointFolder(tmp_path / "new") as new:
        new.roll_back(find_saved("", FollowedFolder(folder.path).history()))
        resumed = new.newest().model
        save(new, resumed, 42)
        assert new.newest().model.read_all() == load(tmp_path / "copy.ckpt").read_all()
    shutil.copy(path, tmp_path / "alone.ckpt")
    raises(
        "models of its keys are not in .*keys.sqlite .*--copy FILE.*. Restore",
        load,
        tmp_path / "alone.ckpt",
        error=CorruptCheckpointError,
    )
    raises("cannot be loaded", read_checkpoint, "topic", False, path.read_bytes(), error=CheckpointError)


def test_a_follower_reads_on_while_a_learner_replaces_what_it_reads(folder, model):
    models = FollowedFolder(folder.path, trusted=True, seconds=0.0)
    followed = models.read_newer().model
    first_blocks = followed.table.read(range(30))
    for rows in range(1, 6):
        learn(model, range(30))
        assert rows > 1 or followed.table.read(range(30)) == first_blocks
        save(folder, model, 40 + rows)
    learn(model, range(25))  # not in a checkpoint: not seen
    assert followed.table.read(range(30)) == load(folder.path, trusted=True).read_all() != first_blocks
    assert type(models.read_newer()) is FollowedModel
    folder.close()
    assert followed.table.read([3]) == load(folder.path, trusted=True).table.read([3])
    assert model.table.read([3]) == followed.table.read([3])  # although its folder was closed


def test_a_worker_that_hung_writes_no_block_after_its_folder_was_taken_over(folder, model):
    expected = model.read_all()
    with CheckpointFolder(folder.path, trusted=True, take_over=True) as second:
        resumed = second.newest().model
        raises("taken over", learn, model, range(100, 200), error=TakenOverError)
        assert resumed.read_all() == expected
        save(second, learn(resumed, range(50)), 90)
        raises("taken over", save, folder, model, 41, error=TakenOverError)
    assert load(folder.path, trusted=True).read_all() == resumed.read_all()


def test_a_process_that_hangs_in_a_transaction(folder, model, monkeypatch):
    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, timeout=0.01))
    with contextlib.closing(sqlite3.connect(folder.path / FILE_NAME)) as other:
        other.execute("BEGIN IMMEDIATE")
        with CheckpointFolder(folder.path, trusted=True, take_over=True) as second:
            resumed = second.newest().model
            raises("keys.sqlite: .*locked: end the other process", learn, resumed, range(100, 200), error=StreamError)
            other.rollback()
            save(second, learn(resumed, range(100, 200)), 90)


def test_a_read_only_folder(folder, model, monkeypatch):
    expected = model.read_all()
    folder.close()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    reader = load(folder.path, trusted=True)
    assert reader.read_all() == expected
    learn(reader, range(30))  # blocks that leave the memory are forgotten
    assert not list(folder.path.glob("keys.sqlite-*"))


def spoil_pages(file):
    data = bytearray(file.read_bytes())
    for start in range(8192, len(data), 8192):
        data[start : start + 100] = bytes(255 for _ in range(100))
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda file: file.unlink(), "not in .*keys.sqlite .*Restore the whole folder"),
        (lambda file: file.write_bytes(b"no database" * 1000), "keys.sqlite: file is not a database. Restore"),
        (lambda file: file.write_bytes(b""), "not a file of this version|are not in .*keys.sqlite"),
        (lambda file: query(file.parent, "CREATE TRIGGER t AFTER INSERT ON blocks BEGIN SELECT 1; END"), "not a file of this"),
        (lambda file: query(file.parent, "DELETE FROM checkpoints"), "not in .*keys.sqlite"),
        (lambda file: query(file.parent, "UPDATE blocks SET block = x'00'"), "checksum of the key .* is wrong. Restore"),
        (lambda file: query(file.parent, "UPDATE blocks SET updated = -1 WHERE key = '3'"), "checksum of the key 3 is wrong"),
        (lambda file: query(file.parent, "UPDATE blocks SET block = 3.5"), "Restore"),
        (lambda file: query(file.parent, "UPDATE blocks SET key = '[' WHERE id = 33"), "Restore"),
        (spoil_pages, "malformed|Restore"),
        (lambda file: file.replace(file.with_name("x")) and file.symlink_to("x"), "it is a link or a pipe"),
        (lambda file: os.mkfifo(f"{file}-journal"), "it is a link or a pipe"),
    ],
)
@pytest.mark.parametrize("writes", [False, True])
def test_missing_damaged_and_foreign_files(folder, model, spoil, message, writes):
    folder.close()
    spoil(folder.path / FILE_NAME)
    with CheckpointFolder(folder.path, trusted=True) if writes else contextlib.nullcontext() as resumed:
        read = resumed.newest if writes else functools.partial(read_checkpoint, max(folder.path.glob("*.ckpt")), True)
        with pytest.raises((CheckpointError, StreamError), match=message) as raised:
            read().model.read_all()
    if "malformed" in str(raised.value) or "are not in" in str(raised.value):
        text = str(raised.value).replace(str(folder.path.parent), "DIR").replace("000000000040", "ROWS")
        assert f"> {text.rpartition('cannot be loaded: ')[2]}\n" in FAILURES.read_text()


def test_a_newer_checkpoint_without_its_keys_is_skipped(folder, model):
    # Both files were copied, keys.sqlite before the newest checkpoint was written.
    shutil.copytree(folder.path, folder.path.with_name("copy"))
    save(folder, learn(model, range(30)), 70)
    shutil.copy(folder.path / "checkpoint-000000000070.ckpt", folder.path.with_name("copy"))
    with pytest.warns(UserWarning, match="Continuing from checkpoint-000000000040"):
        copied = load(folder.path.with_name("copy"), trusted=True)
    assert copied.read_all() == learn(KeyCounts(100), [*range(30), *range(10)]).read_all()


def make_rows(n, keys):
    rng = random.Random(5)
    for _ in range(n):
        key, a = min(int(rng.paretovariate(0.7)), keys), rng.gauss(0, 1)
        yield {"device": key, "a": a, "b": rng.gauss(0, 1)}, a > math.sin(key)


def learn_keys(folder, n, keys, max_keys, pipe=None, max_rows=None):
    """Learn rows of a number of ``keys`` with checkpoints in a folder, and return all blocks of the model."""
    with CheckpointFolder(folder) as checkpoints:
        model = KeyedClassifier(BSGDClassifier(budget=5, seed=1), key="device", max_keys=max_keys)
        source = IterableSource(list(make_rows(n, keys)))
        loop = LearningLoop(source, model, checkpoints=checkpoints, checkpoint_every=100)
        if pipe is not None:
            os.write(pipe.fileno(), b"begin\n")
        loop.run(max_rows)
        blocks = {key: block for key, _, block in loop.model.key_models.store.read_recent(-1)}
    assert len(blocks) > max_keys or keys < max_keys
    return blocks, max(folder.glob("*.ckpt")).read_bytes()


def test_a_run_that_stops_and_continues_with_evicted_keys(tmp_path):
    learn_keys(tmp_path / "stopped", 400, 60, 10, max_rows=250)
    stopped = learn_keys(tmp_path / "stopped", 400, 60, 10)
    assert stopped == learn_keys(tmp_path / "whole", 400, 60, 10)
    assert stopped[0] == learn_keys(tmp_path / "large", 400, 60, 1000)[0]
    merged = load(tmp_path / "whole")
    merged.merge_with(load(tmp_path / "stopped"))  # takes as many keys as there are in memory, the latest ones
    last_rows = {key: merged.key_models._parse_blocks(block, 1)["last_row"][0] for key, block in stopped[0].items()}
    assert {*merged.key_models._blocks} == {*sorted(last_rows, key=last_rows.get)[-10:]}


def test_batches_of_rows_without_labels_of_more_keys_than_fit_into_memory(tmp_path):
    learn_keys(tmp_path, 400, 60, 10)
    rows = [x for x, _ in make_rows(120, 60)]
    batched, single = load(tmp_path), load(tmp_path)
    for start in (0, 80):
        part, names = rows[start : start + 40], list(rows[0])
        X = np.array([list(x.values()) for x in part], np.float64)
        assert list(batched.predict_then_learn(X, names, [None] * 40, None)[0]) == [single.predict_one(x) for x in part]
    assert {*batched.key_models._blocks} == {*single.key_models._blocks}


def test_two_keys_of_a_row_have_a_table_each(tmp_path):
    inner = KeyedClassifier(BSGDClassifier(budget=5, seed=1), key="shop", max_keys=5)
    model = KeyedClassifier(inner, key="device", max_keys=5)
    with CheckpointFolder(tmp_path) as folder:
        for i in range(2):
            for x, y in make_rows(60, 30):
                model.learn_one({**x, "shop": x["device"] % 7 + i}, y)
            save(folder, model, 60 * (i + 1))
    resumed = load(tmp_path)
    for models in (model.key_models, inner.key_models):
        other = resumed.key_models if models.key == "device" else resumed.classifier.key_models
        assert {*other.store.read_recent(-1)} == {*models.store.read_recent(-1)}
    assert query(tmp_path, "SELECT count(DISTINCT number) FROM blocks") == [(2,)]
    assert model.key_models.store.number != inner.key_models.store.number


def test_a_follower_reads_models_of_keys_that_have_grown(folder):
    model, rng = KeyedClassifier(BSGDClassifier(budget=5, seed=1), key="device", max_keys=4), random.Random(0)
    folder.check(model, None)
    followed = None
    for rows, n_features, labels in ((100, 2, "ab"), (200, 2, "ab"), (300, 20, "ab"), (400, 40, "abc")):
        for _ in range(100):
            x = {f"f{i}": rng.random() for i in range(n_features)}
            model.learn_one({"device": rng.randrange(20), **x}, rng.choice(labels))
        save(folder, model, rows)
        followed = followed or FollowedFolder(folder.path, seconds=0.0).read_newer().model
    models = followed.key_models
    for key in range(20):
        new, old = (part.key_models._parse_blocks(model.key_models.store.read([key])[key], 1)[0] for part in (model, followed))
        assert models.describe_key(key)["rows of own models"] == old["rows"] == new["rows"]
        assert (new["linear"][:2, :3] == old["linear"]).all()
        assert (new["covariance"][:3, :3] == old["covariance"]).all()
        assert (new["means"][:2, :2] == old["means"]).all()
        assert followed.predict_one({"device": key, "f0": 0.5, "f1": 0.1}) in ("a", "b")


@pytest.mark.parametrize("change", [("block", "x'00'"), ("block", "zeroblob(length(block))"), ("key", "'[1]'")])
def test_invalid_blocks_end_a_run_although_their_checksums_are_right(tmp_path, change):
    learn_keys(tmp_path, 200, 60, 10)
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection, connection:
        connection.create_function("checksum", 5, key_store._compute_checksum)
        connection.execute("UPDATE blocks SET {} = {} WHERE key = '1'".format(*change))
        connection.execute("UPDATE blocks SET checksum = checksum(number, key, version, updated, block)")
    model = load(tmp_path)
    raises("keys.sqlite: .* Restore", copy.deepcopy, model, error=StreamError)
    if change[0] == "block":
        raises("keys.sqlite: .* Restore", learn_keys, tmp_path, 300, 60, 10, error=StreamError)


@pytest.mark.thorough
def test_kills_at_random_moments(tmp_path):
    n = 30 if OF_RELEASE else 6
    kills, rng, arguments = 0, random.Random(), (tmp_path / "killed", 650 * n, 3000, 100)
    while kills < n:
        process, reader = fork_with_pipe(learn_keys, *arguments)
        os.read(reader.fileno(), 10)
        time.sleep(rng.uniform(0.0, 0.1))
        process.kill()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        kills += process.exitcode != 0
        if process.exitcode == 0:
            break
    assert kills == n
    killed = learn_keys(*arguments)
    assert killed == learn_keys(tmp_path / "whole", *arguments[1:])
    assert killed[0] == learn_keys(tmp_path / "large", *arguments[1:3], 10_000)[0]
