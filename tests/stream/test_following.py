"""Predictions with the newest model of a learner that keeps learning."""

import shutil
import threading

import pytest

from streamsvm import BSGDClassifier
from streamsvm.stream import (
    CheckpointFolder,
    FollowedFolder,
    IterableSource,
    LearningLoop,
    PredictionLoop,
    Sink,
    load,
)


def rows(n):
    return [({"a": i % 7 / 7, "b": i % 5 / 5}, (i * i) % 3 == 1) for i in range(n)]


class Learner:
    """A learner that learns some further rows on request."""

    def __init__(self, path):
        self._folder = CheckpointFolder(path)
        self._loop = LearningLoop(IterableSource(rows(1000)), BSGDClassifier(budget=10), checkpoints=self._folder)

    def learn(self, n):
        self._loop.run(n)

    def save(self, model, rows):
        self._folder.save(model, None, rows=rows, position={})

    def close(self):
        self._folder.close()


@pytest.fixture
def learner(tmp_path):
    learner = Learner(tmp_path / "state")
    yield learner
    learner.close()


class Written(list, Sink):
    """A sink that collects its records."""

    name = "list"
    write = list.append

    def flush(self):
        return {"records": len(self)}


def test_each_row_is_predicted_by_the_newest_model(tmp_path, learner):
    learner.learn(100)
    expected = []

    def stream():
        for i, (x, y) in enumerate(rows(40)):
            if i in (10, 25):
                learner.learn(100)
            newest = load(tmp_path / "state")
            expected.append((newest.predict_one(x), 100 * (1 + (i >= 10) + (i >= 25))))
            yield x, y

    follow = FollowedFolder(tmp_path / "state", seconds=0.0)
    first = follow.read_newer()
    loop = PredictionLoop(IterableSource(stream()), first.model, sink := Written(), follow=follow, version=first.version)
    loop.run()
    assert [(record["y_pred"], record["model"]) for record in sink] == expected
    assert all(list(record) == ["row", "y_pred", "y_true", "probability", "model"] for record in sink)
    assert loop.version == 300


def test_the_folder_is_not_read_more_often_than_requested(tmp_path, learner, monkeypatch):
    learner.learn(10)
    looks = []
    monkeypatch.setattr(FollowedFolder, "history", lambda self: looks.append(self.path) or [])
    follow = FollowedFolder(tmp_path / "state", seconds=60.0)
    assert [follow.read_newer() for _ in range(100)] == [None] * 100
    assert len(looks) == 1


def test_an_unreadable_checkpoint_leaves_the_model_in_use(tmp_path, learner):
    learner.learn(10)
    follow = FollowedFolder(tmp_path / "state", seconds=0.0)
    assert follow.read_newer().version == 10
    for file in (tmp_path / "state").glob("*.ckpt"):
        file.write_bytes(b"nothing")
    with pytest.warns(UserWarning, match="the earlier model stays"):
        assert follow.read_newer() is None
    assert follow.read_newer() is None  # there is one warning
    learner.learn(10)
    assert follow.read_newer().version == 20
    shutil.rmtree(tmp_path / "state")
    with pytest.warns(UserWarning, match="state.*: the earlier model stays"):
        assert follow.read_newer() is None
    assert follow.read_newer() is None


def test_a_damaged_checkpoint_is_left_out(tmp_path, learner):
    follow = FollowedFolder(tmp_path / "state", seconds=0.0)
    learner.learn(20)
    (tmp_path / "state" / "checkpoint-000000000030.ckpt").write_bytes(b"nothing")
    with pytest.warns(UserWarning, match="Continuing from"):
        assert follow.read_newer().version == 20


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda learner, path: learner.save({"a": "model"}, 20), "state holds a dict, which is not a model"),
        (lambda _, path: load(path).save(path / "checkpoint-000000000020.ckpt"), "its number of rows is missing"),
    ],
)
def test_a_checkpoint_without_a_model_leaves_the_model_in_use(tmp_path, learner, write, reason):
    learner.learn(10)
    follow = FollowedFolder(tmp_path / "state", seconds=0.0)
    first = follow.read_newer()

    def stream():
        for i, row in enumerate(rows(6)):
            if i == 3:
                write(learner, tmp_path / "state")
            yield row

    loop = PredictionLoop(IterableSource(stream()), first.model, sink := Written(), follow=follow, version=first.version)
    with pytest.warns(UserWarning, match=f"{reason}.*: the earlier model stays"):
        loop.run()
    assert [record["model"] for record in sink] == [10] * 6


def test_it_waits_for_the_first_model(tmp_path):
    follow = FollowedFolder(tmp_path / "state", seconds=0.01)
    (tmp_path / "state").mkdir()
    threading.Timer(0.1, follow.stop).start()
    assert follow.wait_for_first() is None
    follow = FollowedFolder(tmp_path / "state", seconds=0.01)
    learner = Learner(tmp_path / "state")
    thread = threading.Timer(0.1, learner.learn, [10])
    thread.start()
    assert follow.wait_for_first().header["rows"] == 10
    assert follow.read_newer() is None
    stopped = FollowedFolder(tmp_path / "state")
    stopped.stop()
    assert stopped.wait_for_first() is None  # although there is a checkpoint
    thread.join()
    learner.close()
