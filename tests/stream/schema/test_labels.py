"""Labels that are numbers to predict, and the order of rows."""

import math
import random
import warnings

import pandas as pd
import pytest

from streamsvm import BSGDClassifier, table_model
from streamsvm.stream.schema.column_inference import InferredColumn
from streamsvm.stream.schema.labels import infer_label, warn_of_falling_times, warn_of_labels
from streamsvm.stream.tables.dates import parse_times
from streamsvm.stream.tables.row_order import are_falling

rng = random.Random(7)
N = 600
LETTERS = [rng.randrange(26) for _ in range(N)]
TENURES = [*range(1, 73), *[1] * 900, *[72] * 700, *(min(72, 1 + int(rng.expovariate(0.03))) for _ in range(9 * N))]
COUNTS = [max(0, round(rng.gauss(40, 12))) for _ in range(N)]
ROUNDED = [count // 5 * 5 if rng.random() < 0.6 else count for count in COUNTS * 5]


@pytest.mark.parametrize(
    ("labels", "options"),
    [
        ([f"${1200 + 7 * i:,}" for i in range(60)], {"columns": {"y": "quantity=."}}),
        ([f"{1200 + 7 * i},50 €" for i in range(60)], {"columns": {"y": "quantity=,"}}),
        ([f"{i}.5 kg" for i in range(60)], {"columns": {"y": "quantity=kg"}}),
        ([f"1:{i:02d}:30" for i in range(60)], {"columns": {"y": "duration"}}),
        ([*range(60), "unknown", "unknown"], {"columns": {"y": "number=unknown"}}),
        ([f"{i},25" for i in range(60)], {"decimal": ","}),
        ([f"{940 + 7 * i:,} €".replace(",", ".") for i in range(60)], {"columns": {"y": "quantity=,"}}),  # 1.003 € beside 947 €
        ([940 + 7 * i if i < 9 else f"{1 + 7 * i / 1000:.3f}" for i in range(60)], {"columns": {"y": "quantity=,"}}),
        ([f"2024-{1 + i // 28:02d}-{1 + i % 28:02d}" for i in range(60)], {"columns": {"y": "date"}}),
        ([f"{1 + i % 28:02d}.{1 + i // 28:02d}.2024" for i in range(60)], {"columns": {"y": "date=%d.%m.%Y"}}),
        ([i / 7 for i in range(60)], {}),
    ],
)
def test_targets_in_other_notations_get_options(labels, options):
    column = infer_label("y", labels, True)
    assert (column.kind, column.required_options) == ("target", options)
    assert infer_label("y", labels, False).note == "a number to predict"


@pytest.mark.parametrize(
    "labels", [["$5", "$6", "$5"] * 20, ["<=50K", ">50K"] * 20, ["1", "2", "unknown"] * 20, [True, False] * 20]
)
def test_names_of_classes_stay_as_they_are(labels):
    column = infer_label("y", labels, False)
    assert (column.kind, column.note, column.required_options) == ("label", "", {})


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (COUNTS, "numbers in y are learned as labels. To predict a number: --regression"),
        (list(map(str, COUNTS)), "numbers in y are learned as labels"),
        ([f"{count}%" for count in COUNTS], "numbers in y are learned as labels"),
        ([f"{count} months" for count in COUNTS], "numbers in y are learned as labels"),
        (["unknown" if count % 9 == 0 else count for count in COUNTS], "numbers in y are learned as labels"),
        ([f"{2000 + count}-01-01" for count in COUNTS], "numbers in y are learned as labels"),
        (TENURES, "the 72 numbers in y are learned as labels"),  # peaks at the ends
        (ROUNDED, "numbers in y are learned as labels"),
        ([1000 * count * count for count in ROUNDED], ""),  # ids of classes, whose neighbours are not near
        ([i % 90 for i in range(300)], "the 90 numbers in y are learned as labels"),
        ([f"{weight} kg" for weight in LETTERS], ""),
        (sorted(["ham", "spam", "news"] * 50), "the rows are sorted by y"),
        ([1] * 60 + [0] * 60, "the rows are sorted by y"),
        ([1] * 60 + [0] * 60 + [1], "the rows are sorted by y"),  # nearly
        ([0] * 80 + [1, 1] + [0] * 78 + [1] * 60 + [0] + [1] * 59, "the rows are sorted by y"),
        (([0] * 40 + [1] * 40) * 2, ""),  # states that last
        ([0] * 100 + [1], "the rows are sorted by y"),
        ([0] * 50 + [1] + [0] * 50, ""),
        ([0] * 60 + [0, 1] * 30 + [1] * 60, ""),  # drift
        (["Yes", "yes"] * 50, "'Yes' and 'yes' are two labels"),
        (LETTERS, ""),
        (list(range(26)) * 20, ""),
        (["ham", "spam"] * 50, ""),
        ([1] * 60, ""),
        ([[1], {"a": 1}, math.nan] * 30, ""),
        ([0, 1] * 60 + [None] * 60, ""),
    ],
)
def test_unusual_labels_are_pointed_out(labels, words):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_labels("rows.csv", "y", labels, are_classes=True, is_file=True)
    assert len(caught) == (words != "")
    assert all(words in str(warning.message) for warning in caught)


@pytest.mark.parametrize("targets", [[i / 7 for i in range(90)], [str(-i / 7) for i in range(90)], [*range(9), "1e1"] * 9])
def test_a_file_sorted_by_its_targets_is_pointed_out(targets):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_labels("rows.csv", "y", targets, are_classes=False, is_file=True)
    assert ["the rows are sorted by y" in str(warning.message) for warning in caught] == [True] * (targets[-1] != "1e1")


@pytest.mark.parametrize(
    ("days", "is_newest_first"),
    [(range(30, 24, -1), True), (range(24, 30), False), ([3, 2, 4, 1] * 3, False), ([5, 4, 3, 1, 2, 0], False)],
)
def test_days_of_several_rows_may_fall(days, is_newest_first):
    assert are_falling([float(day) for day in days for _ in range(9)]) is is_newest_first


def write_frame(frame, form, tmp_path):
    """Return the path of a frame that is written in a format, or the frame itself."""
    path, write = tmp_path / f"rows.{form}", {"csv": frame.to_csv, "jsonl": frame.to_json, "parquet": frame.to_parquet}.get(form)
    if write is None:
        return frame
    write(path, **{"csv": {"index": False}, "jsonl": {"orient": "records", "lines": True}}.get(form, {}))
    return path


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "frame"])
@pytest.mark.parametrize(
    ("name", "first", "is_pointed_out"), [("order_id", 900, True), ("ts", 1_700_000_000, True), ("a", 900, False)]
)
def test_ids_and_epochs_may_fall(form, name, first, is_pointed_out, tmp_path):
    frame = pd.DataFrame({name: range(first, first - 90, -1), "b": [i % 7 for i in range(90)], "y": [0, 1, 1] * 30})
    table = write_frame(frame, form, tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table_model(table, "y")
    assert [f"{name} falls from row to row" in str(warning.message) for warning in caught] == [True] * is_pointed_out


@pytest.mark.parametrize(("step", "is_newest_first"), [(-1, True), (1, False), (7, False)])
def test_rows_with_the_newest_first_are_pointed_out(step, is_newest_first):
    rows = [{"at": f"2024-01-{1 + i * step % 28:02d}"} for i in range(28)]
    rows = sorted(rows * 3, key=lambda row: row["at"], reverse=step < 0) if abs(step) == 1 else rows * 3
    rows = [{"at": f"{row['at']} {i % 3:02d}:00"} for i, row in enumerate(rows)] if step > 0 else rows
    rows = [row | {"at": f"{row['at']} {23 - i % 24:02d}:00"} for i, row in enumerate(rows)] if step < 0 else rows
    times = parse_times([row["at"] for row in rows], "%Y-%m-%d %H:%M")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_falling_times("rows.csv", [InferredColumn("at", "date", "", times=times)])
    assert ["newest rows come first" in str(warning.message) for warning in caught] == [True] * is_newest_first


def test_random_classes_are_no_counts():
    """Classes with numbers, whose frequencies differ, as those of 35 or 90 classes do."""
    for n_classes in range(22, 98, 4):
        weights = [rng.lognormvariate(0.0, 1.0) for _ in range(n_classes)]
        labels = rng.choices(range(n_classes), weights, k=60 * n_classes)
        with warnings.catch_warnings(action="error"):
            warn_of_labels("rows.csv", "y", labels, are_classes=True, is_file=True)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "frame"])
@pytest.mark.parametrize("name", ["day", "order_id"])
def test_labels_that_last_in_a_time_series_are_no_misleading_order(form, name, tmp_path):
    """A sort by label keeps the days in order within each label, and an id may have been given after it."""
    days = pd.date_range("2024-01-01", periods=120)
    values = {
        "day": days.strftime("%Y-%m-%d"),
        "epoch": [1_700_000_000 + 86_400 * i for i in range(120)],
        "order_id": range(9, 129),
    }
    frame = pd.DataFrame({name: values[name], "b": [i % 7 for i in range(120)], "y": ["winter"] * 40 + ["spring"] * 80})
    for table, is_in_order in ((frame, name != "order_id"), (pd.concat([frame[40:], frame[:40]]), False)):
        source = write_frame(table, form, tmp_path)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = table_model(source, "y", learner=BSGDClassifier(5))
            if form == "frame":
                model.learn_many(table)
        assert any("the rows are sorted by" in str(warning.message) for warning in caught) is not is_in_order


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "frame"])
@pytest.mark.parametrize("unit", ["", " kg"])
def test_many_numbers_after_the_first_rows_are_targets(form, unit, tmp_path):
    targets = [40 + (i % 30 if i < 250 else i * 7 % 200) for i in range(900)]
    frame = pd.DataFrame({"b": [i % 7 for i in range(900)], "y": [f"{y}{unit}" if unit else y for y in targets]})
    with warnings.catch_warnings(action="error"):
        schema = table_model(write_frame(frame, form, tmp_path), "y").schema
    assert schema.regression
    assert "... (30)" in schema.columns[-1].values  # of the first rows
