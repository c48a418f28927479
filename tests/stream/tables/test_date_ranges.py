"""The range of learned dates, and frames with dates beyond it."""

import datetime as dt
import random

import pandas as pd
import pytest

from saved import dumps, loads
from streamsvm import BSGDClassifier, table_model
from streamsvm.stream import ColumnMonitor, IterableSource, LearningLoop
from streamsvm.stream.tables import TableEncoder

DAY = 86_400.0


def make_lines(first, n, form="%Y-%m-%d %H:%M"):
    rng = random.Random(first)
    for i in range(n):
        a = rng.gauss(0.0, 1.0)
        yield f"{dt.datetime(2024, 1, 1) + dt.timedelta(hours=first + i):{form}},{a:.3f},{'yes' if a > 0.0 else 'no'}"


def test_frames_are_compared_if_all_dates_lie_beyond():
    lines = [line.split(",") for line in make_lines(0, 300)]
    table = pd.DataFrame(lines, columns=["at", "a", "y"]).astype({"a": float})
    model = table_model(table, "y", learner=BSGDClassifier(budget=20))
    for start in range(0, 300, 50):  # as a stream: each frame is predicted, then learned
        model.predict_many(table[start : start + 50])
        model.learn_many(table[start : start + 50])
    later = table.assign(at=[line.split(",")[0] for line in make_lines(4800, 300)])
    with pytest.warns(UserWarning, match=r"column 'at' is up to 200 days beyond .* \(300 of 300 rows\)"):
        model.predict_many(later)


def test_rows_one_by_one_and_together_make_one_range():
    times = [DAY * (i * i % 41) for i in range(60)]
    rows = [{"at": None if i % 7 == 0 else time, "n": i % 5} for i, time in enumerate(times)]
    seen = [x["at"] for x in rows if x["at"] is not None]
    encoders = [TableEncoder("at:date") for _ in range(3)]
    for x in rows:
        encoders[0].learn_one(x)
    encoders[1].learn_many(pd.DataFrame(rows))
    model = encoders[2] | BSGDClassifier(budget=5)
    LearningLoop(IterableSource([(x, i % 2) for i, x in enumerate(rows)]), model).run()
    for encoder in encoders:
        assert encoder.column_state.date_ranges == {"at": (min(seen), max(seen))}
        assert loads(dumps(encoder)).column_state.date_ranges == encoder.column_state.date_ranges
    other = TableEncoder("at:date")
    other.learn_one({"at": -DAY, "n": 1})
    encoders[0].merge_with(other, TableEncoder("at:date"))
    assert encoders[0].column_state.date_ranges == {"at": (-DAY, max(seen))}


def test_a_model_of_an_older_version_has_no_ranges():
    encoder = TableEncoder("at:date")
    encoder.learn_one({"at": 1.0})
    state = encoder.__getstate__()
    del state["_date_ranges"]
    older = TableEncoder.__new__(TableEncoder)
    older.__setstate__(state)
    assert older.column_state.date_ranges == {}
    monitor = ColumnMonitor(older.learned_columns, older)
    monitor.add_row({"at": 1e9})
    assert monitor.messages == []
    assert "_date_ranges" not in TableEncoder("city:category").__getstate__()


def test_a_run_that_resumes_keeps_the_distance():
    encoder = TableEncoder("at:date")
    for day in range(1, 11):
        encoder.learn_one({"at": f"2024-01-{day:02d}"})
    monitors = [ColumnMonitor(encoder.learned_columns, encoder) for _ in range(2)]
    monitors[0].add_row({"at": "2024-01-31T10:11:12"})
    monitors[1].resume(monitors[0].state)
    assert monitors[1].messages == monitors[0].messages
    assert "up to 21 days beyond" in monitors[1].messages[0]


def test_distances_are_measured_from_the_range():
    encoder = TableEncoder("at:date=%d.%m.%Y")
    for text in ("01.01.2024", "11.01.2024"):
        encoder.learn_one({"at": text})
    state = encoder.column_state
    assert state.measure_dates_beyond("at", ["05.01.2024", "13.01.2024", None, "oops"]) == (0, 0.0)
    assert state.measure_dates_beyond("at", ["28.12.2023", "15.01.2024"]) == (2, 4 * DAY)
    assert state.measure_dates_beyond("n", ["5"]) == (0, 0.0)
    same = TableEncoder("at:date")
    same.learn_one({"at": "2024-01-01"})
    assert same.column_state.measure_dates_beyond("at", ["2025-01-01"]) == (0, 0.0)
