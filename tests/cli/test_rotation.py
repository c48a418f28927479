"""Rotated files of predictions and of refused rows on the command line."""

import csv
import json

import pytest

LEARN = ["learn", "--label", "y", "--learner", "bsgd,budget=20", "--quiet"]


@pytest.fixture
def some_bad(file):
    return file("rows.csv", "a,b,y", *(f"{i % 7},{i % 5},{i % 2}" if i % 10 else f"{i},1,2,3,4" for i in range(400)))


def rows_of(folder, name):
    lines = [line for path in sorted(folder.glob(name)) for line in path.read_text().splitlines()]
    if name.endswith("jsonl"):
        return [json.loads(line)["row"] for line in lines]
    return [int(cells[0]) for cells in csv.reader(lines) if cells[0] != "row"]


def test_predictions_and_refused_rows_are_in_numbered_files(some_bad, tmp_path, call):
    words = some_bad, "--to", tmp_path / "out.csv", "--on-error", tmp_path / "bad.jsonl", "--checkpoint", tmp_path / "state"
    call(*LEARN, *words, "--rotate", "2KB", "--max-rows", 150)
    call(*LEARN, *words, "--rotate", "2kb")
    assert rows_of(tmp_path, "out*.csv") == [i for i in range(400) if i % 10]
    assert rows_of(tmp_path, "bad*.jsonl") == list(range(0, 400, 10))
    assert min(len(list(tmp_path.glob(name))) for name in ("out*.csv", "bad*.jsonl")) > 1
    predict = ["predict", some_bad, "--model", tmp_path / "state", "--on-error", "skip", "--quiet"]
    call(*predict, "--to", tmp_path / "new.jsonl", "--rotate", "1KB")
    assert rows_of(tmp_path, "new*.jsonl") == [i for i in range(400) if i % 10]
    assert (tmp_path / "new.000002.jsonl").exists()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ["--to", "out.csv", "--rotate", "1XB"],
            "--rotate must be a size such as 500MB or 1GB, DAY, or a duration such as 12h, not '1XB'",
        ),
        *(
            ([*sink, "--rotate", "DAY"], "--rotate DAY is about files of predictions and refused rows: give --to FILE, too")
            for sink in ([], ["--to", "kafka://127.0.0.1:1/out", "--on-error", "kafka://127.0.0.1:1/bad"])
        ),
    ],
)
def test_rotation_needs_a_size_or_duration_and_a_file(some_bad, call, flags, says):
    call(*LEARN, some_bad, *flags, status=2, says=says)


def test_only_files_are_rotated(some_bad, tmp_path, call):
    words = [*LEARN[:-1], some_bad, "--rotate", "2KB", "--checkpoint", tmp_path / "state", "--checkpoint-every", 50, "--to"]
    done = call(*words, "-", "--on-error", tmp_path / "bad.jsonl")
    assert [row["row"] for row in done.rows] == [i for i in range(400) if i % 10]
    assert rows_of(tmp_path, "bad*.jsonl") == list(range(0, 400, 10))
    assert (tmp_path / "bad.000001.jsonl").exists()
    call(*words, "/dev/null", status=1, says="/dev/null is not a file, and only files are rotated: leave 2KB out")


@pytest.mark.filterwarnings("default")
def test_a_run_keeps_its_model_when_its_predictions_are_gone(some_bad, tmp_path, call):
    out = tmp_path / "out.csv"
    words = [word for word in LEARN if word != "--quiet"]
    words += [some_bad, "--to", out, "--on-error", "skip", "--checkpoint", tmp_path / "state"]
    call(*words, "--max-rows", 150)
    out.unlink()
    done = call(*words, says="continuing after row 150")
    assert f"{out} was moved, removed or changed: a new file begins, for rows from 150 on" in done.stderr
    assert rows_of(tmp_path, "out*.csv") == [i for i in range(150, 400) if i % 10]
