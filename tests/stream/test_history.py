"""Earlier checkpoints of a folder: which are kept, going back to one of them, and kills meanwhile."""

import contextlib
import math
import os
import random
from pathlib import Path

import pytest

import history_kills
import streamsvm
from checkpoints import save
from lists import OF_RELEASE
from refused import raises
from streamsvm import BSGDClassifier
from streamsvm.files.model_file import write_file
from streamsvm.stream import (
    CheckpointError,
    CheckpointFolder,
    FileSink,
    FollowedFolder,
    IterableSource,
    LearningLoop,
    checkpoint_folder,
)
from streamsvm.stream.checkpoint import find_saved, list_history

DAY = 86_400.0


class Killed(BaseException):
    """Stands for a SIGKILL: no handler of errors runs."""


@pytest.fixture
def state(tmp_path, model):
    """A folder with checkpoints of 10, 20, ... 60 rows, written an hour and a half apart."""
    with CheckpointFolder(tmp_path / "state", keep=100) as folder:
        for i in range(1, 7):
            os.utime(save(folder, model, 10 * i), (5400 * i, 5400 * i))
    return folder.path


def rows_of(path):
    history = list_history(path)
    return [[saved.rows for saved in history if saved.is_aside == aside] for aside in (False, True)]


def roll_back(path, at):
    target = find_saved(path, list_history(path), at)
    with CheckpointFolder(path, keep=100) as folder:
        folder.roll_back(target)


def test_folders_and_pipes_with_the_name_of_a_checkpoint_are_ignored(state, model):
    (state / "checkpoint-000000000070.ckpt").mkdir()
    (state / "checkpoint-000000000090.ckpt.aside").mkdir()
    os.mkfifo(state / "checkpoint-000000000080.ckpt")
    assert rows_of(state) == [[60, 50, 40, 30, 20, 10], []]
    with CheckpointFolder(state, keep=1) as folder:
        assert folder.newest().header["rows"] == 60
        save(folder, model, 75)
    assert rows_of(state) == [[75], []]


def test_a_checkpoint_that_was_removed_meanwhile_is_named(state):
    saved = list_history(state)[0]
    saved.name.unlink()
    raises("checkpoint-000000000060.ckpt: No such file", saved.load, error=CheckpointError)


def test_a_rollback_to_a_checkpoint_that_a_killed_one_had_set_aside(state):
    file = state / "checkpoint-000000000030.ckpt"
    file.rename(file.with_suffix(".ckpt.aside"))
    roll_back(state, 30)
    assert rows_of(state) == [[30, 20, 10], [60, 50, 40]]


@pytest.mark.parametrize(
    ("keep", "keep_every", "kept"),
    [(1, None, [60]), (4, None, [60, 50, 40, 30]), (1, 3 * 3600.0, [60, 50, 30, 10]), (2, DAY, [60, 50]), (9, 1.0, None)],
)
def test_the_newest_are_kept_and_one_of_each_period(state, model, keep, keep_every, kept):
    with CheckpointFolder(state, keep=keep, keep_every=keep_every) as folder:
        assert rows_of(state) == [[60, 50, 40, 30, 20, 10], []]  # nothing is deleted before the next checkpoint is written
        os.utime(save(folder, model, 60), (5400 * 6, 5400 * 6))
    assert rows_of(state) == [kept or [60, 50, 40, 30, 20, 10], []]


def test_what_to_keep_is_remembered(state, model):
    for options, rows, kept in (
        ({}, 70, [70, 60, 50, 40, 30, 20, 10]),  # the fixture keeps 100
        ({"keep": 5, "keep_every": 3 * 3600.0}, 71, [71, 70, 60, 50, 40, 30, 10]),
        ({"keep": 3}, 72, [72, 71, 70, 60, 50, 30, 10]),
        ({}, 73, [73, 72, 71, 60, 50, 30, 10]),
        ({"keep_every": math.inf}, 74, [74, 73, 72]),
        ({}, 75, [75, 74, 73]),
        ({"keep": 1}, 76, [76]),
    ):
        with CheckpointFolder(state, **options) as folder:
            save(folder, model, rows)
        assert rows_of(state) == [kept, []]


def test_a_rollback_to_a_time_before_the_setting_keeps_it(tmp_path, model):
    path = tmp_path / "state"
    for rows, options in ((10, {}), (20, {"keep": 4}), (30, {}), (40, {})):
        with CheckpointFolder(path, **options) as folder:
            os.utime(save(folder, model, rows), (rows, rows))
    roll_back(path, 10)
    with CheckpointFolder(path) as folder:
        for rows in (12, 14, 16, 18):
            save(folder, model, rows)
    assert rows_of(path) == [[18, 16, 14, 12], [40, 30, 20]]


@pytest.mark.parametrize("retention", [7, {"keep": -3}, {"keep": "9"}, {"keep": True}, {"keep_every": []}, {"keep": 10**9}])
def test_invalid_settings_of_a_file_are_ignored(tmp_path, model, retention):
    path = tmp_path / "state"
    with CheckpointFolder(path) as folder:
        for rows in (10, 20):
            save(folder, model, rows, retention=retention)
    with CheckpointFolder(path) as folder:
        save(folder, model, 30)
    assert rows_of(path)[0] == ([30, 20, 10] if retention == {"keep": 10**9} else [30, 20])


def test_a_checkpoint_of_fewer_rows_is_the_newest(state, model):
    with CheckpointFolder(state) as folder:
        save(folder, model, 35)
        assert folder.newest().header["rows"] == 35
    assert rows_of(state) == [[35, 30, 20, 10], [60, 50, 40]]


def test_a_process_that_was_replaced_while_it_wrote_sets_no_checkpoint_aside(tmp_path, model, monkeypatch):
    def hang(file, data):
        monkeypatch.undo()
        with CheckpointFolder(tmp_path, take_over=True) as other:
            save(other, model, 50)
        write_file(file, data)

    monkeypatch.setattr(checkpoint_folder, "write_file", hang)
    with CheckpointFolder(tmp_path) as folder:
        save(folder, model, 40)
    assert rows_of(tmp_path) == [[50, 40], []]


def test_a_period_keeps_its_newest_undamaged_checkpoint(state, model):
    file = state / "checkpoint-000000000050.ckpt"
    file.write_bytes(file.read_bytes()[:-1])
    with CheckpointFolder(state, keep=1, keep_every=3 * 3600.0) as folder:
        save(folder, model, 70)
    assert rows_of(state) == [[70, 60, 40, 30, 10], []]  # 70 is of today


@pytest.mark.parametrize("options", [{"keep": 0}, {"keep": 1.5}, {"keep_every": 0.0}, {"keep_every": float("nan")}])
def test_invalid_retention_is_refused(tmp_path, options):
    raises(next(iter(options)), CheckpointFolder, tmp_path / "state", error=ValueError, **options)
    assert not (tmp_path / "state").exists()


def test_a_checkpoint_is_found_by_rows_or_time(state):
    history = list_history(state)
    for at, rows in ((60, 60), (10**9, 60), (59, 50), (10, 10), (5400.0 * 3, 30), (5400.0 * 3 - 1, 20), (None, 60)):
        assert find_saved(state, history, at).rows == rows
    for at in (9, 5399.0):
        raises("holds no checkpoint so early: streamsvm checkpoints lists", find_saved, state, history, at, error=CheckpointError)
    raises("name a folder or topic of checkpoints", find_saved, state, [], 5, error=CheckpointError)


def test_later_checkpoints_are_set_aside_and_can_be_restored(state):
    before = {file.name: (file.read_bytes(), file.stat().st_mtime) for file in state.iterdir()}
    roll_back(state, 35)
    assert rows_of(state) == [[30, 20, 10], [60, 50, 40]]
    assert streamsvm.stream.checkpoint.read_newest(state).header["rows"] == 30
    roll_back(state, 20)
    roll_back(state, 50)
    assert rows_of(state) == [[50, 40, 30, 20, 10], [60]]
    roll_back(state, 60)
    assert {file.name: (file.read_bytes(), file.stat().st_mtime) for file in state.iterdir()} == before


def test_set_aside_checkpoints_stay_until_the_run_has_passed_them(state, model):
    roll_back(state, 20)
    with CheckpointFolder(state, keep=3) as folder:
        assert rows_of(state) == [[20, 10], [60, 50, 40, 30]]
        save(folder, model, 25)
        assert rows_of(state) == [[25, 20, 10], [60, 50, 40, 30]]
        save(folder, model, 50)
        assert rows_of(state) == [[50, 25, 20], [60]]
        save(folder, model, 61)
    assert rows_of(state) == [[61, 50, 25], []]


def test_a_damaged_target_is_refused(state):
    with CheckpointFolder(state) as folder:
        target = list_history(state)[2]
        target.name.write_bytes(b"")
        raises("000000000040.ckpt is corrupt", folder.roll_back, target, error=CheckpointError)
    assert rows_of(state) == [[60, 50, 40, 30, 20, 10], []]


def test_a_folder_that_another_process_has_taken_over_stays(state):
    folder = CheckpointFolder(state, keep=100)
    with CheckpointFolder(state, keep=100, take_over=True):
        raises("taken over", folder.roll_back, list_history(state)[-1], error=CheckpointError)
    assert rows_of(state) == [[60, 50, 40, 30, 20, 10], []]
    folder.close()


@pytest.mark.parametrize(("first", "to"), [(60, 20), (20, 60), (20, 40)])
def test_a_kill_at_any_step_leaves_the_old_newest_or_the_target(state, first, to, monkeypatch):
    roll_back(state, first)
    replace, steps, is_done = Path.replace, 0, False
    while not is_done:
        left = steps

        def replace_unless_killed(path, target):
            nonlocal left
            if not left:
                raise Killed
            left -= 1
            return replace(path, target)

        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            patch.setattr(Path, "replace", replace_unless_killed)
            roll_back(state, to)
            is_done = True
        newest = rows_of(state)[0][0]
        assert newest == to if is_done else newest in (first, to)
        CheckpointFolder(state, keep=100).close()  # restores those that are not later than the newest one
        assert rows_of(state) == [list(range(newest, 0, -10)), list(range(60, newest, -10))]
        roll_back(state, first)
        steps += 1
    assert steps > 2


def test_the_new_one_of_two_with_as_many_rows_stays(state, model):
    roll_back(state, 20)
    file = state / "checkpoint-000000000040.ckpt"
    file.write_bytes(list_history(state)[0].read())  # the process was killed before it has deleted the earlier one
    CheckpointFolder(state).close()
    assert file.read_bytes() == list_history(state)[0].read()
    assert rows_of(state) == [[40, 30, 20, 10], [60, 50]]


def test_a_follower_switches_to_the_earlier_model(state):
    models = FollowedFolder(state, seconds=0.0)
    assert models.read_newer().version == 60
    roll_back(state, 30)
    assert (models.read_newer().version, models.read_newer()) == (30, None)
    roll_back(state, 60)
    assert (models.read_newer().version, models.read_newer()) == (60, None)
    assert [saved.rows for saved in models.history()] == [60, 50, 40, 30, 20, 10]


def test_the_run_continues_as_if_it_had_been_killed_there(tmp_path):
    rows = [({"a": i % 7 / 7, "b": i % 5 / 5}, (i * i) % 3 == 1) for i in range(400)]

    def learn(name, n):
        with CheckpointFolder(tmp_path / name, keep=9) as folder, FileSink(tmp_path / name / "out.jsonl") as sink:
            model = BSGDClassifier(budget=10, seed=1)
            LearningLoop(IterableSource(rows), model, sink=sink, checkpoints=folder, checkpoint_every=50).run(n)

    learn("whole", 400)
    learn("state", 250)
    roll_back(tmp_path / "state", 120)
    learn("state", 300)
    for name in ("checkpoint-000000000400.ckpt", "out.jsonl"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "state" / name).read_bytes()


@pytest.mark.thorough
def test_kills_lose_no_checkpoint(tmp_path):
    """For a release with more kills."""
    seed, kills = random.randrange(10**6), 16 if OF_RELEASE else 6
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    counts = history_kills.kill_often(tmp_path / "state", kills, random.Random(seed), *history_kills.SECONDS["folder"])
    assert counts["writing"] + counts["rolling back"] >= kills
