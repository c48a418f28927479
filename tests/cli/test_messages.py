"""What the commands print: lines of progress without figures of nothing, and errors that say what to do."""

import pytest


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a,b,y\n" + "".join(f"{i % 7},{i % 5},{i % 2}\n" for i in range(60)))
    return path


def test_no_figures_of_nothing(rows, tmp_path, call):
    words = ["learn", rows, "--label", "y", "--checkpoint", tmp_path / "state"]
    last = call(*words, "--max-rows", 1).stderr.splitlines()[-1]
    assert last.startswith("1 row  1 support vector")
    assert "Accuracy" in (last := call(*words).stderr.splitlines()[-1])
    assert " rows/s" in last
    done = call(*words)  # with nothing new
    assert done.stderr.splitlines()[-1].startswith("60 rows  Accuracy 0.")
    quiet = call("learn", rows, "--label", "y", "--max-rows", 1, "--quiet").stdout
    assert '"metric": null' in quiet


def test_a_source_without_rows_is_an_error(tmp_path, call):
    path = tmp_path / "rows.csv"
    path.write_text("a,b,y\n")
    done = call("learn", path, "--label", "y", "--checkpoint", tmp_path / "state", "--to", tmp_path / "out.csv")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"streamsvm: {path} has no rows: there is nothing to learn"
    assert not list((tmp_path / "state").glob("*.ckpt"))
    assert not (tmp_path / "out.csv").exists()
