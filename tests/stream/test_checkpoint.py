"""Checkpoint files: atomic writes, pruning, damage, locks, and files of other programs."""

import random
from pathlib import Path

import portalocker
import pytest

import streamsvm
from checkpoints import save
from refused import raises
from streamsvm.files import container
from streamsvm.stream import CheckpointError, CheckpointFolder, FileSink, StreamError, checkpoint, checkpoint_folder, load
from streamsvm.stream.checkpoint import FolderLockedError, TakenOverError, read_checkpoint, read_header


def test_round_trip_and_the_newest_two_are_kept(folder, model):
    for rows in (5, 40, 300):
        path = save(folder, model, rows)
    assert [file.name for file in sorted(folder.path.glob("*.ckpt"))] == [
        "checkpoint-000000000040.ckpt",
        "checkpoint-000000000300.ckpt",
    ]
    checkpoint_read = folder.newest()
    assert checkpoint_read.header["rows"] == 300
    assert checkpoint_read.header["position"] == {"rows": 300}
    x = {"1": 0.3, "2": -0.4}
    for other_model in (checkpoint_read.model, load(path), load(str(folder.path)), streamsvm.load(folder.path)):
        assert other_model.predict_proba_one(x) == model.predict_proba_one(x)
    assert read_header(path) == checkpoint_read.header


def test_damage_at_any_byte_is_detected(folder, model):
    save(folder, model, 1)
    path = save(folder, model, 2)
    data_written = path.read_bytes()
    rng = random.Random(0)
    cuts = [0, 1, 7, 8, 15, 16, 17, 100, len(data_written) // 2, len(data_written) - 1]
    flips = [rng.randrange(len(data_written)) for _ in range(150)] + list(range(24))
    for cut in cuts:
        path.write_bytes(data_written[:cut])
        raises(path.name, read_checkpoint, path, error=CheckpointError)
    for place in flips:
        data = bytearray(data_written)
        data[place] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        raises(rf"{path.name} is corrupt.*Remove it", read_checkpoint, path, error=CheckpointError)
    path.write_bytes(data_written[:-1])
    with pytest.warns(UserWarning, match="Continuing from checkpoint-000000000001"):
        assert folder.newest().header["rows"] == 1
    for file in folder.path.glob("*.ckpt"):
        file.write_bytes(b"")
    with pytest.raises(CheckpointError):
        folder.newest()


def test_corrupt_checkpoints_are_pruned_and_good_ones_kept(tmp_path, model):
    path = tmp_path / "state"
    with CheckpointFolder(path) as folder:
        for rows in (100, 200, 300, 400):
            save(folder, model, rows)
        for rows in (300, 400):
            file = path / f"checkpoint-{rows:012d}.ckpt"
            (path / f"checkpoint-{rows - 200:012d}.ckpt").write_bytes(file.read_bytes())  # 100 and 200 are good again
            file.write_bytes(file.read_bytes()[:-3])
        (path / "checkpoint-copy.ckpt").write_bytes(b"of the user")
    with CheckpointFolder(path) as folder:
        assert names_of(path) == [100, 200, 300, 400]  # the next `newest` warns of the corrupt ones
        with pytest.warns(UserWarning, match="Continuing from checkpoint-000000000200"):
            folder.newest()
        assert save(folder, model, 250).exists()
        assert names_of(path) == [200, 250]
        assert save(folder, model, 40).exists()  # never the one just written
    assert names_of(path) == [40]
    assert (path / "checkpoint-copy.ckpt").exists()


def test_unchanged_files_are_not_read_again(folder, model, monkeypatch):
    is_corrupt, looked = checkpoint_folder._is_corrupt, []
    monkeypatch.setattr(checkpoint_folder, "_is_corrupt", lambda file: looked.append(file.name) or is_corrupt(file))
    for rows in (100, 200, 300):
        path = save(folder, model, rows)
    assert looked == []
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    save(folder, model, 400)
    assert looked == [path.name]
    assert names_of(folder.path) == [200, 400]


def names_of(path):
    return sorted(int(file.stem.rpartition("-")[2]) for file in path.glob("checkpoint-0*.ckpt"))


def test_only_a_damaged_checkpoint_is_skipped(folder, model, monkeypatch):
    save(folder, model, 1)
    with monkeypatch.context() as patch:
        patch.setattr(container, "VERSION", 9)
        path = save(folder, model, 2)
    for read_it in (folder.newest, lambda: load(path)):
        raises("version 9 of the format.*upgrade", read_it, error=CheckpointError)
    save(folder, model, 3)
    assert path.exists()
    assert checkpoint.read_newest_in_folder(str(folder.path)).header["rows"] == 3


def test_a_checkpoint_that_is_pruned_while_it_is_read(folder, model, monkeypatch):
    save(folder, model, 1)

    def read_late(path, trusted, read=read_checkpoint):
        if path.name.endswith("1.ckpt"):
            save(folder, model, 2)
            save(folder, model, 3)
        return read(path, trusted)

    monkeypatch.setattr(checkpoint, "read_checkpoint", read_late)
    assert checkpoint.read_newest_in_folder(folder.path).header["rows"] == 3


def test_nothing_is_written_after_close(folder, model):
    folder.close()
    raises("closed", save, folder, model, 1, error=CheckpointError)


def test_new_folders_are_made_durable(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(checkpoint_folder, "sync_folder", synced.append)
    CheckpointFolder(tmp_path / "a" / "b").close()
    assert set(synced) == {tmp_path, tmp_path / "a"}


def test_foreign_files(folder, model, tmp_path):
    path = save(folder, model, 1)
    path.write_bytes(path.read_bytes().replace(b'"version":"1"', b'"version":"9"'))
    raises("is corrupt: its checksum is wrong", load, path, error=CheckpointError)
    (tmp_path / "image.png").write_bytes(b"\x89PNG" + bytes(100))
    (tmp_path / "huge.ckpt").write_bytes(b"\xff" * 8 + b"{}" * 50)
    (tmp_path / "empty").mkdir()
    (tmp_path / "workers" / "partition-0").mkdir(parents=True)
    for name, reason in {
        "image.png": "is corrupt: it is cut off, or not a file of streamsvm",
        "huge.ckpt": "corrupt",
        "none.ckpt": "No such file",
        "empty": "holds no checkpoint$",
        "workers": "holds no checkpoint: name that of a partition, such as .*workers/partition-0$",
    }.items():
        raises(reason, load, tmp_path / name, error=CheckpointError)


def test_a_file_system_without_locks_raises_an_error(tmp_path, monkeypatch):
    def fails(*_):
        raise portalocker.exceptions.LockException("No locks available")

    monkeypatch.setattr(portalocker, "lock", fails)
    raises("state: its file system has no locks", CheckpointFolder, tmp_path / "state", error=CheckpointError)
    raises("a.csv: its file system has no locks", FileSink, tmp_path / "a.csv", error=StreamError)


def test_partial_files_of_a_killed_writer_are_removed(tmp_path):
    (tmp_path / "checkpoint-000000000009.ckpt.part").write_bytes(b"half")
    with CheckpointFolder(tmp_path) as folder:
        assert folder.newest() is None
        assert not list(tmp_path.glob("*.part"))


def test_a_folder_that_is_taken_over_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    first, new_owners, replace = CheckpointFolder(tmp_path), [], Path.replace

    def late(part, target):
        new_owners.append(CheckpointFolder(tmp_path, take_over=True))
        return replace(part, target)

    monkeypatch.setattr(Path, "replace", late)
    raises("another process has taken over the folder", first.save, "model", None, rows=1, position={}, error=TakenOverError)
    assert not list(tmp_path.glob("*.ckpt*"))
    for folder in (first, *new_owners):
        folder.close()


def test_the_former_owner_cannot_write_to_a_folder_that_was_taken_over(tmp_path):
    first = CheckpointFolder(tmp_path)
    first.save("model", None, rows=1, position={})
    raises("another process", CheckpointFolder, tmp_path, error=FolderLockedError)
    with CheckpointFolder(tmp_path, take_over=True) as second:
        raises("another process has taken over the folder", first.save, "model", None, rows=2, position={}, error=TakenOverError)
        second.save("model", None, rows=3, position={})
        first.close()  # the lock is the second one's
        with pytest.raises(FolderLockedError):
            CheckpointFolder(tmp_path)
    assert [path.name for path in sorted(tmp_path.glob("*.ckpt"))] == [
        "checkpoint-000000000001.ckpt",
        "checkpoint-000000000003.ckpt",
    ]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "rows.csv").write_text("a,y\n")
    for path in (tmp_path / "rows.csv", tmp_path / "rows.csv" / "state"):
        with pytest.raises(CheckpointError, match="a file: checkpoints need a folder" if path.exists() else "Not a directory"):
            CheckpointFolder(path)
