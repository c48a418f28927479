"""Times of day, and the phase in a day and a week that dates with times of day get without a flag."""

import datetime as dt
import random

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from streamsvm import BSGDClassifier, load, table_model
from streamsvm.batch.tables import TableClassifier
from streamsvm.stream.schema.encoder_options import format_cycles, infer_cycles
from streamsvm.stream.tables import TableEncoder
from streamsvm.stream.tables.dates import parse_times

START = dt.datetime(2024, 3, 1)


def make_table(n=120):
    """Return a frame with a date and time, a date, a typed time of day, the three as texts, a number and a label."""
    rng = random.Random(0)
    moments = [START + dt.timedelta(minutes=37 * i) for i in range(n)]
    return pd.DataFrame(
        {
            "at": moments,
            "born": [(START - dt.timedelta(days=i % 9)).date() for i in range(n)],
            "clock": [moment.time() for moment in moments],
            "v": [round(rng.gauss(0.0, 1.0), 3) for _ in range(n)],
            "y": ["busy" if 8 <= moment.hour < 20 else "idle" for moment in moments],
        }
    )


def write(table, door, folder):
    """Return the table for `table_model`: a path, a frame, or dicts."""
    path = folder / f"rows.{door}"
    if door in ("csv", "jsonl"):
        texts = table.assign(**{name: table[name].astype(str) for name in ("at", "born", "clock")})
        if door == "csv":
            texts.to_csv(path, index=False)
        else:
            texts.to_json(path, orient="records", lines=True)
    elif door in ("parquet", "arrow"):
        arrow = pa.Table.from_pandas(table)
        assert pa.types.is_time(arrow.schema.field("clock").type)
        parquet.write_table(arrow, path) if door == "parquet" else feather.write_feather(arrow, path, compression="uncompressed")
    else:
        frames = {"pandas": table, "polars": pl.from_pandas(table), "pyarrow": pa.Table.from_pandas(table)}
        return table.to_dict("records") if door == "dicts" else frames[door]
    return path


DOORS = ["csv", "jsonl", "parquet", "arrow", "pandas", "polars", "pyarrow", "dicts"]
KINDS = {"at": "date", "born": "date", "clock": "date"}


@pytest.mark.parametrize("door", DOORS)
def test_dates_with_times_of_day_get_cycles_through_all_doors(tmp_path, door):
    table = make_table()
    data = write(table, door, tmp_path)
    model = table_model(data, "y", learner=BSGDClassifier(budget=20))
    assert model.schema.options == {"columns": KINDS, "cycles": ["at:day", "at:week", "clock:day"]}
    assert "cycles=['at:day', 'at:week', 'clock:day']" in str(model.schema)
    model.learn_many(table)
    features = {"at", "born", "clock", "v"} | {
        f"{cycle} {part}" for cycle in ("at day", "at week", "clock day") for part in ("sin", "cos")
    }
    assert set(model["BSGDClassifier"].feature_names) == features
    assert model.score(table) > 0.85
    for cycles in ((), "day", ["at:year"]):
        schema = table_model(data, "y", learner=BSGDClassifier(budget=20), cycles=cycles).schema
        assert schema.options["cycles"] == ([cycles] if isinstance(cycles, str) else list(cycles))


@pytest.mark.parametrize("door", ["csv", "jsonl", "parquet", "arrow"])
def test_flags_of_cycles(tmp_path, call, door):
    path = write(make_table(), door, tmp_path)
    learn = ["learn", path, "--label", "y", "--learner", "bsgd,budget=20"]
    said = call(*learn, "--checkpoint", tmp_path / "state").stderr
    assert "read with --columns at:date,born:date,clock:date --cycles at:day,at:week,clock:day (" in said
    assert load(tmp_path / "state")["TableEncoder"].cycles == ["at:day", "at:week", "clock:day"]
    said = call(*learn, "--checkpoint", tmp_path / "state", "--cycles", "none", status=1).stderr
    assert "--cycles none contradicts the checkpoint, which was learned with --cycles at:day,at:week,clock:day" in said
    call(*learn, "--checkpoint", tmp_path / "none", "--cycles", "none")
    assert load(tmp_path / "none")["TableEncoder"].cycles == []
    call(*learn, "--checkpoint", tmp_path / "none")  # continues with the learned cycles
    assert load(tmp_path / "none")["TableEncoder"].cycles == []
    said = call(*learn, "--ask", status=1).stderr
    flags = ["--columns", "at:date,born:date,clock:date", "--cycles", "at:day,at:week,clock:day"]
    assert said.endswith(f"Try: {' '.join(flags)}\n")
    said = call(*learn, *flags[:2], "--ask", status=1).stderr
    assert said.endswith(f"dates have times of day, and need an answer. Try: {' '.join(flags[2:])}\n")
    call(*learn, *flags, "--ask")


def test_estimators_infer_cycles():
    table = make_table()
    model = TableClassifier(BSGDClassifier(budget=20), random_state=0).fit(table[["at", "v"]], table.y.tolist())
    assert model.model_.schema.options == {"columns": {"at": "date"}, "cycles": ["day", "week"]}
    model = TableClassifier(BSGDClassifier(budget=20), random_state=0, cycles=()).fit(table[["at", "v"]], table.y.tolist())
    assert model.model_["TableEncoder"].cycles == []


@pytest.mark.parametrize(
    ("values", "form", "cycles"),
    [
        (["2024-03-01", "2024-03-02", "2024-03-03", "2024-03-04"], None, ()),
        (["2024-03-30T23:00Z", "2024-03-31T22:00Z", "2024-04-01T22:00Z"], None, ()),  # midnight in Berlin
        (["8:30 PM", "9:00 AM", "11:15 AM"], "%I:%M %p", ("day",)),
        (["08:30", "09:15:20", "23:59"], None, ("day",)),
        (["01.03.2024 08:30", "01.03.2024 08:31", "01.03.2024 08:32"], "%d.%m.%Y %H:%M", ("day", "week")),
        ([1_709_251_200_000.0 + 3_600_000 * i for i in range(5)], "ms", ("day", "week")),
        ([20240301.0, 20240302.0, 20240303.0], None, ()),
        (["NA", None, "2024-03-01"], None, ()),
    ],
)
def test_cycles_suit_the_dates(values, form, cycles):
    assert infer_cycles(parse_times(values, form)) == cycles


def test_cycles_of_some_columns_are_named():
    assert format_cycles({}) == format_cycles({"a": ()}) == []
    encoder = TableEncoder("a:date,b c:date", cycles=format_cycles({"a": ("day",), "b c": ("day", "week")}))
    encoder.learn_one({"a": 1000, "b c": 2000})
    assert sorted(encoder.transform_one({"a": 1000, "b c": 2000})) == sorted(
        ["a", "b c", "a day sin", "a day cos", *(f"b c {cycle} {part}" for cycle in ("day", "week") for part in ("sin", "cos"))]
    )
    for cycles in ("c:day", "a:moon", "a:"):
        with pytest.raises(ValueError, match="cycles must be of day, week, year"):
            TableEncoder("a:date", cycles=cycles)


def test_dates_in_an_index_are_pointed_out():
    table = make_table()[["at", "v", "y"]].set_index("at")
    with pytest.warns(UserWarning, match=r"the index of the frame has dates, which are not learned: data.reset_index\(\)"):
        model = table_model(table, "y", learner=BSGDClassifier(budget=20))
    model.learn_many(table)
    assert model["BSGDClassifier"].feature_names == ["v"]
    table_model(table.reset_index(), "y", learner=BSGDClassifier(budget=20))
