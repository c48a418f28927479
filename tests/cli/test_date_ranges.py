"""Dates beyond those that a model has learned are reported by every command."""

import datetime as dt
import random

import pandas as pd
import pytest

from streamsvm import BSGDClassifier, table_model
from streamsvm.stream.rows import ValidatingPipeline, get_learned_columns
from streamsvm.stream.tables.column_monitor import ColumnMonitor


def make_lines(first, n, form="%Y-%m-%d %H:%M"):
    rng = random.Random(first)
    for i in range(n):
        a = rng.gauss(0.0, 1.0)
        yield f"{dt.datetime(2024, 1, 1) + dt.timedelta(hours=first + i):{form}},{a:.3f},{'yes' if a > 0.0 else 'no'}"


@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M", "%d.%m.%Y %H.%M"])
def test_every_command_reports_dates_beyond_those_learned(file, tmp_path, call, form):
    state, learn = tmp_path / "state", ["--label", "y", "--learner", "bsgd,budget=20", "--checkpoint", tmp_path / "state"]
    call("learn", file("rows.csv", "at,a,y", *make_lines(0, 480, form)), *learn)
    next_day, later, mixed = (
        file(f"{name}.csv", "at,a,y", *lines)
        for name, lines in {
            "next": make_lines(480, 24, form),
            "later": make_lines(4800, 30, form),
            "mixed": [*make_lines(0, 30, form), *make_lines(-240, 10, form)],
        }.items()
    )
    for words in (
        ["predict", "--to", "-", "--model"],
        ["score", "--model"],
        ["explain"],
        ["report", "--to", tmp_path / "a.html"],
    ):
        for path, text in ((next_day, None), (later, "181 days {} (30 of 30 rows)"), (mixed, "10 days {} (10 of 40 rows)")):
            paths = [path, *words[1:], state] if words[0] in ("predict", "score") else [state, path, *words[1:]]
            options = ["--overwrite"] if words[0] == "report" else []
            said = call(words[0], *paths, *options).stderr
            assert ("beyond" in said) is (text is not None)
            assert text is None or f"column 'at' is up to {text.format('beyond the dates that were learned')}" in said
    assert call("predict", mixed, "--model", state, "--to", tmp_path / "p.csv", "--quiet").end["dates_beyond"] == {"at": 10}
    dropped = ["learn", tmp_path / "rows.csv", "--label", "y", "--columns", "at:drop", "--checkpoint", tmp_path / "dropped"]
    call(*dropped, "--learner", "bsgd,budget=20")
    assert "beyond" not in call("score", later, "--model", tmp_path / "dropped").stderr
    path = file("rows.csv", "at,a,y", *make_lines(0, 480, form), *make_lines(4800, 30, form))
    assert "beyond" not in call("learn", path, *learn).stderr  # it learns there


def test_columns_with_dates_beyond_those_learned_share_a_message():
    rows = [
        {"at": f"2024-0{1 + i // 60}-{1 + i % 28:02d}", "due": f"2025-0{1 + i // 60}-{1 + i % 28:02d}", "a": i % 7 / 3}
        for i in range(300)
    ]
    frame = pd.DataFrame([{**row, "y": i % 3 > 1} for i, row in enumerate(rows)])
    model = table_model(frame, "y", learner=BSGDClassifier(20, seed=0))
    model.learn_many(frame)
    monitor = ColumnMonitor(get_learned_columns(model), ValidatingPipeline(model, learns=False).encoder)
    for row in ({**rows[0], "due": "2026-01-01"}, {**rows[0], "at": "2025-01-01"}, rows[1]):
        monitor.add_row(row)
    (message,) = monitor.messages
    assert message.startswith("columns 'due', 'at' are up to 2")
    assert "(1 of 3 rows)" in message
