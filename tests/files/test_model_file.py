"""Files are written atomically, and paths that are not files are refused."""

import os
import random
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import streamsvm
from refused import raises
from streamsvm import BSGDClassifier, edge
from streamsvm.files import container
from streamsvm.files.container import ModelFileError, pack_container, unpack_container
from streamsvm.files.model_file import read_metadata, serialize_parts, write_file, write_files


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def model():
    model = BSGDClassifier(budget=5)
    for number in range(10):
        model.learn_one({"a": float(number)}, number > 4)
    return model


@pytest.mark.parametrize(("digits", "refused"), [(300, False), (301, True)])
def test_integers_that_cannot_be_read_are_refused(model, digits, refused):
    facts = {"position": {"rows": 10**digits - 1, "text": "7" * 400}}
    if refused:
        raises("an int has 301 digits", serialize_parts, {"model": model}, facts, error=ModelFileError)
    else:
        assert read_metadata(unpack_container(serialize_parts({"model": model}, facts)))["position"] == facts["position"]


def test_files_are_written_together(tmp_path):
    first, second = tmp_path / "model.c", tmp_path / "model.h"
    write_files({first: b"old", second: b"old"})
    second.unlink()
    second.mkdir()
    raises("Is a directory", write_files, {first: b"new", second: b"new"}, error=ModelFileError)
    assert first.read_bytes() == b"old"
    assert names(tmp_path) == ["model.c", "model.h"]


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of the size of files")
def test_full_disk_leaves_files_unchanged(tmp_path):
    import resource
    import signal

    first, second = tmp_path / "model.h", tmp_path / "model.c"
    write_files({first: b"old", second: b"old"})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        raises("File too large", write_files, {first: b"new", second: bytes(2000)}, error=ModelFileError)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert (first.read_bytes(), second.read_bytes()) == (b"old", b"old")
    assert names(tmp_path) == ["model.c", "model.h"]


def test_concurrent_writers_of_a_file(tmp_path):
    path, contents = tmp_path / "model", [bytes([number]) * (100_000 + number) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda data: write_file(path, data), contents * 5))
    assert path.read_bytes() in contents
    assert names(tmp_path) == ["model"]


@pytest.mark.skipif(sys.platform == "win32", reason="no locks of folders")
def test_concurrent_writers_of_two_files_are_not_mixed(tmp_path, monkeypatch):
    replace = Path.replace

    def slow(self, target):
        contents = replace(self, target)
        time.sleep(random.random() * 0.01)
        return contents

    monkeypatch.setattr(Path, "replace", slow)
    first, second = tmp_path / "model.h", tmp_path / "model.c"
    for _ in range(10):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: write_files({first: bytes([number]), second: bytes([number])}), range(4)))
        assert first.read_bytes() == second.read_bytes()


def test_symbolic_link_is_kept(tmp_path, model):
    (tmp_path / "latest").symlink_to(tmp_path / "model-3")
    model.save(tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert streamsvm.load(tmp_path / "model-3").n_learned == 10


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_paths_that_are_not_files(path, model):
    raises("was not written: Is a directory", model.save, path, error=ModelFileError)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device")
def test_devices_and_pipes_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # without a writer
    for path in ("/dev/zero", tmp_path / "pipe"):
        raises(f"{path}: it is a device or a pipe, not a file", streamsvm.load, path, error=ModelFileError)
        raises(f"{path}: it is a device or a pipe, not a file", edge.load, path, error=edge.ExportError)


def test_only_the_header_of_a_large_file_is_read(tmp_path, monkeypatch):
    path = tmp_path / "model"
    for first_bytes in (b"", b"\2\0\0\0\0\0\0\0{}", pack_container({"a": np.zeros(3)}, {})):
        path.write_bytes(first_bytes)
        os.truncate(path, 200 * 2**30)  # a sparse file
        raises("it is cut off, or not a file of streamsvm", streamsvm.load, path, error=ModelFileError)
        raises("it is cut off, or not a file of streamsvm", edge.load, path, error=edge.ExportError)
    monkeypatch.setattr(container, "_LARGE_FILE_BYTES", 0)
    model = streamsvm.BSGDClassifier(budget=5)
    model.learn_one({"a": 1.0}, True)
    model.save(path)
    assert streamsvm.load(path).predict_one({"a": 1.0}) is edge.load(path).predict_one({"a": 1.0}) is True


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders")
def test_devices_and_pipes_are_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    raises("it is a device or a pipe, not a file", write_file, tmp_path / "pipe", b"data", error=ModelFileError)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
