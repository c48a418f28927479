"""Files of predictions that are rotated by the sink, or moved, removed and emptied by other programs such as logrotate."""

import contextlib
import csv
import gzip
import itertools
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from river import datasets

from killing import AHEAD, fork_with_pipe, learn, learned_rows
from loops import make_model, prediction
from refused import raises
from streamsvm.stream import CheckpointFolder, CSVSource, FileSink, LearningLoop, StreamError, open_sink, sinks

SUFFIXES = pytest.mark.parametrize("suffix", ["jsonl", "csv"])


@pytest.fixture
def csv_file(tmp_path):
    path = tmp_path / "bananas.csv"
    path.write_text("a,b,y\n" + "".join(f"{x['1']!r},{x['2']!r},{y}\n" for x, y in datasets.Bananas().take(3000)))
    return path


def rows_of(paths):
    """Return the row numbers in files of predictions, one after the other. Each CSV must begin with the header."""
    numbers = []
    for path in paths:
        lines = path.read_text().splitlines()
        if path.name.partition("out.csv")[1] or path.suffix == ".csv":
            assert not lines or lines.pop(0).startswith("row,y_pred,")
            numbers += [int(cells[0]) for cells in csv.reader(lines)]
        else:
            numbers += [json.loads(line)["row"] for line in lines]
    return numbers


def write_rows(sink, first, stop, at_once=False):
    rows = range(first, stop)
    if at_once:
        sink.write_many({"row": rows, "y_pred": [1] * len(rows), "y_true": [0] * len(rows), "probability": [0.5] * len(rows)})
    else:
        for row in rows:
            sink.write(prediction(row, 1, 0, 0.5))


def crash(sink):
    """Unlock a file without closing the sink, as a kill does."""
    sink._file.close()


def resume(path, position, rotate=None):
    sink = FileSink(path, rotate)
    sink.seek(position)
    return sink


@SUFFIXES
@pytest.mark.parametrize("at_once", [True, False])
def test_numbered_files_sort_and_hold_each_row_once(tmp_path, suffix, at_once):
    path = tmp_path / f"out.{suffix}"
    for _ in range(2):  # the second run deletes the files of the first
        with FileSink(path, "1KB") as sink:
            for first in range(0, 600, 10):
                write_rows(sink, first, first + 10, at_once)
        names = sorted(file.name for file in tmp_path.iterdir())
        assert names == [f"out.{number:06}.{suffix}" for number in range(1, len(names))] + [path.name]
        assert rows_of(tmp_path / name for name in names) == list(range(600))
        sizes = [(tmp_path / name).stat().st_size for name in names]
        assert len(names) > 3
        assert all(1000 <= size < 1000 + (600 if at_once else 6000) for size in sizes[:-1])


def test_a_file_that_rotates_when_it_is_closed_can_be_opened_again(tmp_path):
    sink = FileSink(tmp_path / "out.csv", "1KB")
    write_rows(sink, 0, 150)
    sink.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.000001.csv", "out.csv"]
    FileSink(tmp_path / "out.csv").close()


def test_files_rotate_at_midnight_in_utc_and_after_hours(tmp_path, monkeypatch):
    now = 86_400.0 * 20_000 - 3600.0
    monkeypatch.setattr(sinks.time, "time", lambda: now)

    def written(rotate, seconds, row):
        nonlocal now
        now += seconds
        with FileSink(tmp_path / "out.csv", rotate) as sink:
            if position is not None:
                sink.seek(position)
            write_rows(sink, row, row + 2)
            result = sink.flush()
        os.utime(tmp_path / "out.csv", (now, now))
        return result, sorted(file.name for file in tmp_path.glob("out.0*"))

    position = None
    position, names = written("DAY", 0, 0)
    assert names == []
    position, names = written("DAY", 3599, 2)  # the last second of the day
    assert names == []
    position, names = written("day", 1, 4)  # after a pause of the run
    assert names == ["out.000001.csv"]
    position, names = written("DAY", 3600, 6)
    assert names == ["out.000001.csv"]
    position, names = written("12h", 3600 * 11, 8)  # noon
    assert names == ["out.000001.csv", "out.000002.csv"]
    assert rows_of([*(tmp_path / name for name in names), tmp_path / "out.csv"]) == list(range(10))
    assert rows_of([tmp_path / names[0]]) == [0, 1, 2, 3]


def kill_while_it_seeks(path, position, n_deleted, monkeypatch):
    """Begin to resume a run that is killed after it has deleted some files."""
    unlink, left = Path.unlink, n_deleted

    def dying_unlink(file):
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        unlink(file)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", dying_unlink)
        with FileSink(path) as killed, contextlib.suppress(KeyboardInterrupt):
            killed.seek(position)


@SUFFIXES
def test_a_run_resumes_at_any_position_before_several_rotations(tmp_path, suffix, monkeypatch):
    path, rng = tmp_path / f"out.{suffix}", random.Random(5)
    sink = FileSink(path, "1KB")
    saved, row = (sink.flush(), 0), 0
    for _ in range(40):
        for _ in range(rng.randrange(4)):
            n = rng.randint(1, 40)
            write_rows(sink, row, row + n, rng.random() < 0.5)
            row += n
            if rng.random() < 0.6:
                saved = sink.flush(), row
        crash(sink)
        position, row = saved
        if rng.random() < 0.5:
            kill_while_it_seeks(path, position, rng.randrange(3), monkeypatch)
        sink = resume(path, position, rng.choice(["1KB", "1KB", "2KB", None]))
        files = sorted(tmp_path.iterdir())
        assert rows_of(files) == list(range(row))
    sink.close()
    assert len(files) > 5


def rotate_as_logrotate(path, how, target):
    """Move a file to ``target``, or copy and empty it, as logrotate does."""
    if how == "copytruncate":
        shutil.copy2(path, target)
        os.truncate(path, 0)
    else:
        path.rename(target)
        if how == "create":
            path.touch()


@SUFFIXES
@pytest.mark.parametrize("how", ["move", "create", "remove", "copytruncate"])
def test_a_file_that_is_moved_or_emptied_while_a_run_writes(tmp_path, suffix, how):
    path, moved = tmp_path / f"out.{suffix}", tmp_path / f"out.{suffix}.1"
    with FileSink(path) as sink:
        write_rows(sink, 0, 100)
        rotate_as_logrotate(path, how, moved)
        with pytest.warns(
            UserWarning, match=rf"out\.{suffix} was moved, removed or changed: a new file begins, for rows from 100 on"
        ):
            write_rows(sink, 100, 200, at_once=True)
        write_rows(sink, 200, 300)
        position = sink.flush()
        write_rows(sink, 300, 310)
    assert rows_of([moved, path]) == list(range(310))
    resume(path, position).close()
    assert rows_of([moved, path]) == list(range(300))


@SUFFIXES
@pytest.mark.parametrize("name", ["{name}.1", "{name}-20260301", "{stem}-20260301{suffix}"])
@pytest.mark.parametrize("is_noticed", [True, False])
def test_a_killed_run_continues_a_file_that_was_moved_since_the_checkpoint(tmp_path, suffix, name, is_noticed):
    path = tmp_path / f"out[1].{suffix}"
    moved = tmp_path / name.format(name=path.name, stem=path.stem, suffix=path.suffix)
    sink = FileSink(path)
    write_rows(sink, 0, 50)
    position = sink.flush()
    write_rows(sink, 50, 70, at_once=True)
    path.rename(moved)
    if is_noticed:
        with pytest.warns(UserWarning, match="a new file begins, for rows from 70 on"):
            write_rows(sink, 70, 90, at_once=True)
    crash(sink)
    with pytest.warns(UserWarning, match=r"was moved, removed or changed: .*out.* is moved back"):
        sink = resume(path, position)
    write_rows(sink, 50, 60)
    sink.close()
    assert rows_of([path]) == list(range(60))
    assert not moved.exists()


@SUFFIXES
@pytest.mark.parametrize("contents", ["gone", "empty", "later", "compressed", "cut"])
def test_a_lost_file_is_begun_anew_and_the_model_stays(tmp_path, suffix, contents):
    path = tmp_path / f"out.{suffix}"
    with FileSink(path) as sink:
        write_rows(sink, 0, 50)
        position = sink.flush()
        write_rows(sink, 50, 70)
    if contents == "compressed":
        with gzip.open(tmp_path / f"{path.name}.1.gz", "wb") as file:
            file.write(path.read_bytes())
    if contents == "cut":
        os.truncate(path, 300)
    else:
        path.unlink()
    if contents == "empty":
        path.touch()
    if contents == "later":
        with FileSink(path) as sink:
            write_rows(sink, 50, 60)
    with pytest.warns(UserWarning, match=r"was moved, removed or changed: a new file begins, for rows from 50 on"):
        sink = resume(path, position)
    write_rows(sink, 50, 55)
    sink.close()
    assert rows_of([path]) == list(range(50, 55))
    left = tmp_path / f"out.000001.{suffix}"
    assert left.exists() == (contents == "cut")
    if contents == "cut":
        assert left.stat().st_size == 300


@SUFFIXES
@pytest.mark.parametrize("contents", ["changed", "other run", "other program"])
def test_other_contents_are_kept_under_a_number(tmp_path, suffix, contents):
    path = tmp_path / f"out.{suffix}"
    with FileSink(path) as sink:
        write_rows(sink, 0, 50)
        position = sink.flush()
        write_rows(sink, 50, 52)
    if contents == "changed":
        data, offset = path.read_bytes(), position["offset"]
        path.write_bytes(data[: offset - 9] + b"7" + data[offset - 8 :])
    elif contents == "other run":
        with FileSink(path) as sink:
            write_rows(sink, 3, 90)
    else:
        path.write_text("row,cost\n70,12.50\n")
    before = path.read_bytes()
    for _ in range(2):  # the second run continues at the same checkpoint, as the first one was killed
        with pytest.warns(UserWarning, match="was moved, removed or changed: a new file begins, for rows from 50 on"):
            sink = resume(path, position)
        write_rows(sink, 50, 60)
        sink.close()
        assert (tmp_path / f"out.000001.{suffix}").read_bytes() == before
        assert rows_of([path]) == list(range(50, 60))
        assert len(list(tmp_path.iterdir())) == 2


def test_a_moved_file_that_is_still_written_is_refused(tmp_path):
    path = tmp_path / "out.csv"
    with FileSink(path) as older:
        write_rows(older, 0, 50)
        position = older.flush()
        path.rename(tmp_path / "out.csv.1")
        with FileSink(path) as newer, pytest.warns(UserWarning, match="is moved back"):
            raises("another process is writing to it", newer.seek, position, error=StreamError)
        write_rows(older, 50, 60)
    assert rows_of(tmp_path.glob("out*")) == list(range(60))


def test_a_second_writer_is_refused_also_after_a_rotation(tmp_path):
    path = tmp_path / "out.csv"
    with FileSink(path, "1KB") as sink:
        write_rows(sink, 0, 200)
        assert (tmp_path / "out.000001.csv").exists()
        raises("another process is writing to it", FileSink, path, "1KB", error=StreamError)
        write_rows(sink, 200, 300)
    assert rows_of(sorted(tmp_path.iterdir())) == list(range(300))


def test_a_relative_path_stays_in_its_folder(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with FileSink("out.csv", "1KB") as sink:
        write_rows(sink, 0, 50)
        monkeypatch.chdir("other")
        write_rows(sink, 50, 200)
    assert rows_of(sorted(tmp_path.glob("out*"))) == list(range(200))
    assert not list(Path().iterdir())


def test_a_file_with_the_name_of_standard_output(tmp_path, monkeypatch, capfdbinary):
    monkeypatch.chdir(tmp_path)
    Path("-").touch()
    with FileSink("-") as sink:
        sink.write({"row": 0, "y_pred": 1})
    assert capfdbinary.readouterr().out == b'{"row": 0, "y_pred": 1}\n'


@SUFFIXES
def test_a_killed_run_that_has_begun_a_rotated_file_again_begins_it_once_more(tmp_path, suffix):
    path = tmp_path / f"out.{suffix}"
    with FileSink(path) as sink:
        write_rows(sink, 0, 50)
    for stop, end in ((300, crash), (150, FileSink.close)):  # the first run is killed before its first checkpoint
        sink = FileSink(path, "1KB")
        sink.begin(100)
        write_rows(sink, 100, stop)
        end(sink)
    assert rows_of(sorted(tmp_path.iterdir())) == [*range(50), *range(100, 150)]


def test_other_files_with_such_names_stay(tmp_path):
    for name, text in {"out.000001.csv": "id,cost\n1,2\n", "out.000003.csv": "row,y_pred\n1,2\n", "out.csv.bak": "x"}.items():
        (tmp_path / name).write_text(text)
    with FileSink(tmp_path / "out.csv", "1KB") as sink:
        write_rows(sink, 0, 300)
    assert (tmp_path / "out.000001.csv").read_text().startswith("id,cost")
    assert (tmp_path / "out.000003.csv").read_text() == "row,y_pred\n1,2\n"
    others = {tmp_path / "out.000001.csv", tmp_path / "out.000003.csv", tmp_path / "out.csv.bak"}
    files = sorted({*tmp_path.iterdir()} - others)
    assert [file.name for file in files] == ["out.000002.csv", "out.000004.csv", "out.csv"]
    assert rows_of(files) == list(range(300))


def test_only_files_are_rotated(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for place in ("-", "/dev/null", tmp_path / "fifo"):
        raises(r"is not a file, and only files are rotated: leave DAY out", FileSink, place, "DAY", error=StreamError)
    raises("kafka://host/topic is not a file", open_sink, "kafka://host/topic", rotate="1GB", error=StreamError)
    for text in (
        "",
        "0MB",
        "1XB",
        "GB",
        "1.5GB",
        "-1MB",
        "1e3MB",
        "0s",
        "-1 days +23:00:00",
        "90",
        "1 GB a day",
        "nan",
        "1" * 400 + "GB",
    ):
        raises("rotate must be a size such as 500MB or 1GB, DAY, or a duration", FileSink, tmp_path / "out.csv", text)
    assert list(tmp_path.iterdir()) == [tmp_path / "fifo"]


def test_a_position_of_an_earlier_version(tmp_path):
    path = tmp_path / "out.csv"
    with FileSink(path) as sink:
        write_rows(sink, 0, 50)
        position = {name: value for name, value in sink.flush().items() if name not in ("part", "next_row")}
        write_rows(sink, 50, 70)
    resume(path, position).close()
    assert rows_of([path]) == list(range(50))
    with FileSink(path) as sink:
        write_rows(sink, 50, 200)
    with pytest.warns(UserWarning, match="a new file begins"):
        resume(path, position).close()
    assert rows_of(sorted(tmp_path.iterdir())) == list(range(50, 200))


def test_a_run_rotates_predictions_and_dead_letters(tmp_path):
    rows = [f"{x['1']!r},{'' if i % 9 else ','}{y}\n" for i, (x, y) in enumerate(datasets.Bananas().take(600))]
    (tmp_path / "rows.csv").write_text("a,y\n" + "".join(rows))

    def run(place, stop, rotate=None):
        place.mkdir(exist_ok=True)
        with (
            CSVSource(tmp_path / "rows.csv", "y") as source,
            CheckpointFolder(place / "state") as folder,
            FileSink(place / "out.csv", rotate) as sink,
            FileSink(place / "bad.jsonl", rotate) as letters,
        ):
            options = {"sink": sink, "on_error": letters, "checkpoints": folder, "checkpoint_every": 150}
            LearningLoop(source, make_model(), **options).run(stop)

    run(tmp_path / "one", None)
    for stop in (100, 200, None):
        run(tmp_path / "many", stop, "2KB")
    for name, numbers in {"out*.csv": [i for i in range(600) if i % 9], "bad*.jsonl": list(range(0, 600, 9))}.items():
        assert rows_of((tmp_path / "one").glob(name)) == numbers
        files = sorted((tmp_path / "many").glob(name))
        assert rows_of(files) == numbers
        assert len(files) > 3


@contextlib.contextmanager
def stopped(process):
    """Stop a process during a ``with`` block: rows written between the copy and its end would be lost, as logrotate warns."""
    os.kill(process.pid, signal.SIGSTOP)
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)
    yield
    os.kill(process.pid, signal.SIGCONT)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("suffix", "how"),  # logrotate may empty a file between the check and the line, and a CSV is then without its header
    [*itertools.product(["csv", "jsonl"], ["size", "move", "create"]), ("jsonl", "copytruncate")],
)
def test_killed_runs_whose_files_are_rotated_hold_each_row_once(csv_file, tmp_path, suffix, how):
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    rng, rows, path = random.Random(seed), 3000, tmp_path / f"out.{suffix}"
    options = {"label": "y"} | ({"rotate": "3KB"} if how == "size" else {})
    arguments = str(csv_file), options, tmp_path, path
    numbers = itertools.count(1)
    for left in range(8, 0, -1):
        begin = learned_rows(tmp_path)
        kill_at = rng.randint(1, max(2 * (rows - begin) // (left + 1) - 2 * AHEAD, 1))
        rotate_at = rng.randint(100, 200) if how != "size" and path.exists() and begin else rows
        process, reader = fork_with_pipe(learn, *arguments, max(kill_at, 1) + AHEAD)
        announced = 0
        while announced < kill_at:
            new = os.read(reader.fileno(), 1 << 16)
            assert new, "the learner ended before it could be killed"
            announced += len(new)
            if announced >= rotate_at:
                rotate_at = rows
                with stopped(process) if how == "copytruncate" else contextlib.nullcontext():
                    rotate_as_logrotate(path, how, path.with_name(f"{path.name}-{next(numbers):08}"))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    process, reader = fork_with_pipe(learn, *arguments, None)
    while os.read(reader.fileno(), 1 << 16):
        pass
    process.join()
    assert process.exitcode == 0
    files = [file for file in sorted(tmp_path.glob("out*")) if file != path] + [path]
    assert rows_of(files) == list(range(rows))
    assert len(files) > 3 if how == "size" else next(numbers) > 1  # a file that is moved back is one file again
