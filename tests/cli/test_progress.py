"""Progress: a live line on a terminal, lines elsewhere, JSON if quiet; and no figures of nothing."""

import contextlib
import json
import math
import os
import pty
import re
from dataclasses import replace
from subprocess import PIPE

import pytest

from command_words import with_a_model
from forked import Command
from patience import PATIENCE
from streamsvm import BSGDClassifier
from streamsvm.cli.arguments import Reporter
from streamsvm.cli.learn import _show_progress
from streamsvm.cli.progress import ProgressDisplay
from streamsvm.stream import IterableSource, LearningLoop, Progress, ScoreReport


def on_a_terminal(*words):
    """Run the command with a terminal as standard error, and return its output there."""
    main_end, other_end = pty.openpty()
    shown = b""
    with Command(with_a_model(words), stdin=PIPE, stderr=other_end, env={"TERM": "xterm", "COLUMNS": "140"}) as process:
        os.close(other_end)
        with contextlib.suppress(OSError):  # the other end was closed
            while part := os.read(main_end, 4096):
                shown += part
    os.close(main_end)
    assert process.returncode == 0, shown
    return shown.decode()


@pytest.mark.thorough
def test_progress_and_the_next_step_on_a_terminal(bananas, tmp_path, call):
    state, learn = tmp_path / "my state", ["learn", bananas(600), "--label", "y"]
    shown = on_a_terminal(*learn)
    for text in ("600 rows", "Accuracy 0.", "support vectors", "done after"):
        assert text in shown
    assert "the model was not saved: give --checkpoint FOLDER to keep it" in shown
    shown = on_a_terminal(*learn, "--max-rows", 50, "--checkpoint", state)
    assert f"streamsvm predict SOURCE --model '{state}' --to -" in shown
    assert "to predict" not in call(*learn, "--max-rows", 50, "--checkpoint", state).stderr


def test_progress_lines_are_not_wrapped_or_parsed_as_markup(bananas, tmp_path, call):
    path, state = bananas(30, name=f"{'long' * 40}.csv"), tmp_path / "state"
    path.write_text(path.read_text().replace("a,b,y", "[red]a[/red],[b],y"))
    said = call("learn", path, "--label", "y", "--checkpoint", state).stderr.splitlines()
    first_look_line, _, *columns, first = said[:6]
    assert first_look_line == f"first look at {path}, 30 rows"
    assert [line.split()[0] for line in columns] == ["[red]a[/red]", "[b]", "y"]
    assert first.startswith("starting")
    *between, last = [line for line in said[6:] if "rows" in line and line[0] not in " C"]  # without tables
    assert last.startswith("30 rows")
    assert "last 30 rows" in last
    assert last.endswith(" s")
    assert all("rows/s" in line and line.endswith("merges") for line in between)  # on a slow machine
    shown = call("inspect", state, "--all").stdout
    assert "['[b]', '[red]a[/red]']" in shown
    assert any(line.startswith("learned from ") and line.endswith(str(path)) for line in shown.splitlines())
    assert 'scaling="auto"' in shown


def test_run_without_rows_prints_no_figures(rows, tmp_path, call, monkeypatch):
    monkeypatch.setattr("streamsvm.stream.resumable_run._PROGRESS_SECONDS", PATIENCE)  # nothing is said before the end
    words = ["learn", rows, "--label", "y", "--checkpoint", tmp_path / "state"]
    assert re.match(r"1 row  ([\d,]+ rows/s  )?1 support vector", call(*words, "--max-rows", 1).last)
    assert "Accuracy" in (last := call(*words).last)
    assert " rows/s" in last
    assert call(*words).last.startswith("60 rows  Accuracy 0.")  # with nothing new
    assert call("learn", rows, "--label", "y", "--max-rows", 1, "--quiet").end["metric"] is None


def test_the_first_line_of_progress_is_not_of_one_row(rows, monkeypatch, call):
    monkeypatch.setattr("streamsvm.stream.resumable_run._PROGRESS_SECONDS", 0.0)
    facts = call("learn", rows, "--label", "y", "--max-rows", 3, "--quiet").rows
    assert [line["rows"] for line in facts] == [3, 3]  # the first row alone, then all available rows; then the end


def progress_of(rows, rows_per_second, seconds, value=0.5, name="Accuracy", **more):
    report = ScoreReport(name, value, value, more.pop("baselines", ()), windowed_baselines=more.pop("windowed_baselines", ()))
    counts = {"rows": rows, "learned": rows, "scored": rows}
    model, rates = BSGDClassifier(), {"rows_per_second": rows_per_second, "seconds": seconds}
    return Progress(**counts, **rates, model=model, scores=(report,), **more)


def test_progress_json_has_no_nan(capsys):
    progress = progress_of(1, 1.0, 1.0, value=math.inf, name="F1", ended=True, interrupted=True)
    with ProgressDisplay(Reporter(quiet=True, json=False)) as display:
        display.show_progress(progress)
    facts = json.loads(capsys.readouterr().out)
    assert (facts["metric"], facts["windowed"], facts["interrupted"]) == (None, None, True)


def test_paused_stream_is_reported(capsys):
    baselines = {
        "baselines": (("always 'no'", 0.75), ("the previous label", 0.7)),
        "windowed_baselines": (("always 'no'", 0.25),),
    }
    progress = progress_of(10, 0.0, 1.0, **baselines)
    display = ProgressDisplay(Reporter(quiet=False, json=False))
    for seconds in range(4):
        display._last_line_time = -100.0
        display.show_progress(progress if seconds else replace(progress, rows=9))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["9 rows", "10 rows", "waiting for rows"]
    assert "Accuracy 0.5000 (always 'no': 0.7500)  last 10 rows 0.5000 (always 'no': 0.2500)" in lines[0]


def test_rows_per_second_are_since_previous_line(capsys):
    progress = progress_of(0, 50.0, 0.0)
    display = ProgressDisplay(Reporter(quiet=False, json=False))
    for rows, seconds, shown in ((100, 1.0, True), (790, 5.75, False), (800, 6.0, True), (900, 8.0, True)):
        display._last_line_time = -100.0 if shown else math.inf
        display.show_progress(replace(progress, rows=rows, seconds=seconds))
    assert [line.split("  ")[1] for line in capsys.readouterr().err.splitlines()] == ["50 rows/s", "140 rows/s", "50 rows/s"]


@pytest.mark.parametrize("quiet", [False, True])
def test_the_scores_of_each_partition(capfd, quiet):
    rows = [({"a": float(i % 7)}, i % 7 > 3) for i in range(200)]
    loop = LearningLoop(IterableSource(rows), BSGDClassifier(budget=5), ["Accuracy", "LogLoss", "ConfusionMatrix"])
    final = loop.run()
    accuracy, loss, matrix = final.scores
    for event in ("progress", "end"):
        _show_progress(Reporter(quiet, json=False), 200, {3: loop}, event)
        out, err = capfd.readouterr()
        if quiet:
            facts = json.loads(out)["partitions"]["3"]
            assert (facts["metric"], facts["scores"][1]["value"]) == (accuracy.value, loss.value)
            assert facts["scores"][2]["table"] == matrix.table
        else:
            assert f"partition 3: 200, Accuracy {accuracy.value:.4f}" in err
            assert (f", LogLoss {loss.value:.4f}" in err) == (event == "end")
