"""Encoding of rows of tables as features."""

import math
import pickle
import re
import tracemalloc
from datetime import date, datetime, timedelta, timezone

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from river import checks, preprocessing

from refused import raises
from saved import dumps, loads
from streamsvm import BSGDClassifier
from streamsvm.files.container import ModelFileError
from streamsvm.stream.tables import TableEncoder, TableParser


def test_values_are_parsed_by_the_kind_of_their_column():
    parser = TableParser("zip:category,flag:category,at:date", missing=["NA", "-999", "nan"])
    cells = {"zip": "01234", "flag": True, "at": "1970-01-02T00:00:00Z", "a": "1.5", "b": "NA", "c": " ", "d": None, "e": "x"}
    expected = {"zip": "01234", "flag": "true", "at": 86400.0, "a": 1.5, "e": "x"}
    texts = {"f": "2020_1", "g": "\u0663"}  # numbers for Python's float
    assert parser.parse_row((cells | texts).items()) == expected | texts
    cells = {"zip": 75001.0, "flag": "NA", "at": None, "a": -999.0, "b": float("nan"), "c": "-999.0", "d": -999, "e": 0}
    assert parser.parse_row({"zip": -999, "flag": -999.0}.items()) == {}
    assert parser.parse_row(cells.items()) == {"zip": "75001", "e": 0}
    assert [TableParser(decimal=".").parse_label(text) for text in ("1,20", "1,200")] == ["1,20", "1200"]


@pytest.mark.parametrize(
    ("value", "form", "seconds"),
    [
        ("1970-01-01T01:00:00+01:00", None, 0.0),
        ("2.1.1970", "%d.%m.%Y", 86400.0),
        (datetime(1970, 1, 1, 0, 0, 1), None, 1.0),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), None, 0.0),
        (date(1969, 12, 31), None, -86400.0),
        (np.float64(7.0), None, 7.0),
        ("7", None, 7.0),
    ],
)
def test_dates_become_seconds_since_1970(value, form, seconds):
    assert TableParser({"at": f"date={form or ''}"}).parse_row([("at", value)]) == {"at": seconds}


INVALID_COLUMNS = {
    "a:drop,a:category": "a is named twice",
    "a:categorical": "a:categorical cannot be read",
    **dict.fromkeys(["*:number", "*:drop,a:number"], "all other columns"),
}
INVALID_KINDS = [
    ({"a": "categorical"}, "'categorical' is not a kind"),
    ({"a": "drop=x"}, "'drop=x' is not"),
    ({"a": None}, "None is not"),
    *((columns, "columns must be a text or a mapping") for columns in (None, 3, ["a:category"])),
]
INVALID_KINDS += [({1: "drop"}, "names of columns must be str, not 1"), ({"*": "date"}, "all other columns")]
OUT_OF_RANGE = {"when_missing": "median", "cycles": "month", "max_values": -1, "buckets": 0, "scaler": "minmax"}
OUT_OF_RANGE["max_columns"] = 1.5


def test_invalid_options_are_refused():
    for columns, words in [*INVALID_COLUMNS.items(), *INVALID_KINDS]:
        raises(re.escape(words), TableParser, columns)
    for name, value in OUT_OF_RANGE.items():
        raises(name, TableEncoder, **{name: value})
    for name in ("missing", "cycles"):
        raises(f"{name} must be a text or a list of texts, not 3", TableEncoder, **{name: 3})


def test_categories_beyond_max_values_are_hashed_into_buckets():
    encoder = TableEncoder("city:category", max_values=2, buckets=4)
    assert encoder.transform_one({"city": "Oslo"}) == {}
    for city in ("Paris", "Oslo", "Rome"):
        encoder.learn_one({"city": city})
    assert encoder.transform_one({"city": "Paris"}) == {"city=Paris": 1.0}
    (name,) = encoder.transform_one({"city": "Rome"})
    assert name in {f"city#{i}" for i in range(4)}
    assert len({next(iter(encoder.transform_one({"city": str(i)}))) for i in range(200)}) == 4


@pytest.mark.once
def test_many_categories_fit_into_fixed_memory():
    encoder = TableEncoder("city:category", when_missing="indicator", buckets=32)
    model = encoder | BSGDClassifier(budget=5, max_features=200)
    for i in range(200):
        model.learn_one({"city": f"{i:02000d}" if i % 2 else f"{i:09d}"}, i % 3 == 0)
    before = len(dumps(model))
    tracemalloc.start()
    memory_before = tracemalloc.get_traced_memory()[0]
    for i in range(20_000):
        encoder.learn_one({"city": str(i)})
    growth = tracemalloc.get_traced_memory()[0] - memory_before
    tracemalloc.stop()
    assert growth < 20_000
    assert len(dumps(model)) == before
    assert len(model[-1].feature_names) <= 64 + 32


def test_missing_values_are_encoded_by_policy():
    rows = [{"a": 1.0, "c": "x"}, {"a": 3.0, "c": "y"}]
    encoded = {}
    for policy in ("drop", "mean", "indicator"):
        encoder = TableEncoder("c:category", missing="?", when_missing=policy, scaler=None)
        for row in rows + rows:
            encoder.learn_one(row)
        encoded[policy] = encoder.transform_one({"a": "?", "c": ""})
        assert encoder.transform_one({"a": 1.0, "c": "x"}) == {"a": 1.0, "c=x": 1.0}
    missing = {"a is missing": 1.0, "c is missing": 1.0}
    assert encoded == {"drop": {}, "mean": {"a": 2.0}, "indicator": {"a": 2.0} | missing}


def test_only_numbers_are_scaled_and_as_river_scales_them():
    ours, river = TableEncoder("c:category", scaler="standard"), preprocessing.StandardScaler()
    for i in range(10):
        ours.learn_one({"a": float(i), "c": "x"})
        river.learn_one({"a": float(i)})
    assert ours.transform_one({"a": 4.0, "c": "x"}) == river.transform_one({"a": 4.0}) | {"c=x": 1.0}


def test_cycles_of_dates_are_encoded_as_sine_and_cosine():
    encoder = TableEncoder("at:date", cycles=["day", "week"], scaler=None)
    at = "1970-01-01T06:00"
    encoder.learn_one({"at": at})
    x = encoder.transform_one({"at": at})
    assert x.pop("at") == 6 * 3600.0
    assert list(x) == ["at day sin", "at day cos", "at week sin", "at week cos"]
    assert x["at day sin"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            {"a": 1.0, "b": "forty"},
            ["'b' is 'forty', a text", "columns='b:category' (--columns b:category)", "columns='b:drop'", "missing=['forty']"],
        ),
        ({"a": float("inf")}, ["'a' is inf", "finite"]),
        ({"a": 1e39}, ["finite"]),
        ({"a": 10**400}, ["finite"]),
        ({"a": [1]}, ["a list"]),
        ({"at": "yesterday"}, ["'at' is 'yesterday'", "not a date", "ISO 8601"]),
        ({f"c{i}": 1.0 for i in range(4)}, ["exceeds the limit of columns"]),
    ],
)
def test_a_refused_row_does_not_change_the_encoder(row, words):
    encoder = TableEncoder("city:category,at:date", max_columns=3)
    encoder.learn_one({"a": 1.0, "city": "Oslo"})
    before = dumps(encoder)
    with pytest.raises(ValueError, match="feature") as caught:
        encoder.learn_one({"city": "Rome"} | row)
    assert all(word in str(caught.value) for word in words), caught.value
    if row.keys() == {"a", "b"}:  # texts in columns that were never learned are ignored in prediction
        assert encoder.transform_one({"city": "Rome"} | row) == {"a": 1.0}
    else:
        with pytest.raises(ValueError, match="feature"):
            encoder.transform_one({"city": "Rome"} | row)
    assert dumps(encoder) == before


values = st.one_of(st.none(), st.floats(-1e6, 1e6), st.booleans(), st.text(max_size=8), st.integers(-9, 9))


@settings(max_examples=50)
@given(st.lists(st.fixed_dictionaries({}, optional={"n": st.floats(-1e6, 1e6), "c": values, "d": values}), max_size=20))
def test_an_encoder_that_is_saved_and_loaded_continues_like_the_original(rows):
    def make():
        return TableEncoder("c:category,d:category", max_values=3, when_missing="mean")

    encoder, loaded = make(), make()
    for i, row in enumerate(rows):
        encoder.learn_one(row)
        loaded.learn_one(row)
        if i % 3 == 0:
            loaded = loads(dumps(loaded))
        x = encoder.transform_one(row)
        assert loaded.transform_one(row) == x
        assert all(isinstance(value, float) for value in x.values())
        assert encoder.transform_one(encoder._parser.parse_row(row.items())) == x  # parsing twice changes nothing
    assert dumps(encoder) == dumps(loaded)


@pytest.mark.parametrize(
    "copy_encoder", [lambda encoder: pickle.loads(pickle.dumps(encoder)), lambda encoder: loads(dumps(encoder))]
)
def test_copies_keep_the_learned_scaler(copy_encoder):
    encoder = TableEncoder("c:category", scaler="standard", max_values=64)
    for i in range(5):
        encoder.learn_one({"a": float(i), "c": "x"})
    copy = copy_encoder(encoder)
    assert copy.transform_one({"a": 4.0, "c": "x"}) == encoder.transform_one({"a": 4.0, "c": "x"})
    raises("'names' is not a kind", copy.__setstate__, encoder.__getstate__() | {"columns": {"c": "names"}})


#: Learned attributes that no encoder has saved.
WRONG_PAIRS = [(1,), (0, 1.0), (2**70, 1.0), (1, "1"), (1, math.nan), (1, 1e300), ("a", "b"), "ab", True, (1, [1.0, 2.0])]
WRONG = [
    *(
        (name, value)
        for name in ("_means", "_categories", "_quoted", "_date_ranges")
        for value in (5, "a", None, True, [("a", 1)])
    ),
    *(("_means", {"a": pair}) for pair in WRONG_PAIRS),
    *(("_date_ranges", {"at": pair}) for pair in (*WRONG_PAIRS[3:], (2.0, 1.0), (-math.inf, 1.0))),
    *(("_categories", {"c": values}) for values in (5, "a", ["a"], {"x": 5}, {"x": None}, {5: "c=x"})),
    *(("_quoted", {"a": value}) for value in (5, None, ["a"])),
    *(("_statistics", value) for value in (None, False, "a", {})),
    *(("_scaler", value) for value in (None, "standard", {}, preprocessing.MinMaxScaler())),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=str)
def test_forged_states_are_refused(name, value, monkeypatch):
    encoder = TableEncoder("c:category,at:date", scaler="standard")
    for _ in range(2):
        encoder.learn_one({"a": 1.0, "c": "x", "at": "1970-01-02"})
    assert loads(dumps(encoder)).transform_one({"c": "x"}) == encoder.transform_one({"c": "x"})
    state = encoder.__getstate__()
    assert name in state or name == "_quoted"
    monkeypatch.setattr(TableEncoder, "__getstate__", lambda _: state | {name: value})
    raises("not be loaded again: ValueError|inconsistent", dumps, encoder, error=ModelFileError)  # which loads it again


@pytest.mark.once
@pytest.mark.usefixtures("few_objects")
def test_river_checks():
    for check in checks.yield_checks(TableEncoder()):
        check(TableEncoder())


def test_a_clone_of_an_encoder_with_a_scaler_is_untrained():
    encoder = TableEncoder("id:drop", scaler=preprocessing.MinMaxScaler())
    for i in range(3):
        encoder.learn_one({"a": float(i), "id": "x"})
    assert encoder.transform_one({"a": 1.0, "id": "y"}) == {"a": 0.5}
    clone = encoder.clone()
    assert clone.learned_columns == []
    assert clone.columns == {"id": "drop"}


def test_a_custom_scaler_is_saved_and_loaded():
    encoder = TableEncoder(scaler=preprocessing.StandardScaler(with_std=False))
    encoder.learn_one({"a": 3.0})
    loaded = loads(dumps(encoder))
    assert isinstance(loaded.scaler, preprocessing.StandardScaler)
    assert loaded.scaler.counts == {}
    assert loaded.learned_scaler.means == {"a": 3.0}
    assert not loaded.learned_scaler.with_std


@pytest.mark.parametrize("value", [None, math.nan, np.nan, np.float32("nan"), pd.NaT, pd.NA, ""])
@pytest.mark.parametrize("column", ["a", "city", "at"])
def test_null_values_of_frames_are_missing(value, column):
    encoder = TableEncoder("city:category,at:date", when_missing="indicator", scaler=None)
    row = {"a": 1.0, "city": "Oslo", "at": "1970-01-02"}
    encoder.learn_one(row)
    without = {name: cell for name, cell in row.items() if name != column}
    assert encoder.transform_one(row | {column: value}) == encoder.transform_one(without)
    assert f"{column} is missing" in encoder.transform_one(row | {column: value})


def test_a_pipeline_with_an_encoder_learns_and_predicts_frames():
    X = pd.DataFrame({"city": ["Oslo", "Rome"] * 30, "a": [1.0, np.nan] * 30}, index=range(100, 160))
    model = TableEncoder("city:category") | BSGDClassifier(budget=10)
    model.learn_many(X, pd.Series(["cold", "warm"] * 30))
    assert model.predict_many(X).tolist() == ["cold", "warm"] * 30
    assert list(model.predict_proba_many(X).index) == list(X.index)
    raises(r"row 1: feature 'a' is 'x', a text", model.learn_many, pd.DataFrame({"a": [1.0, "x"]}), ["cold", "warm"])
    assert model[-1].n_learned == 61
    raises("X must be an eager frame", model.predict_many, np.ones((2, 2)))


def test_late_errors_do_not_propose_another_kind_of_column():
    encoder = TableEncoder()
    for i in range(20):
        encoder.learn_one({"a": float(i)})
    with pytest.raises(
        ValueError, match=r"'a' is 'x', a text\. The 20 values learned before are numbers: fix this one"
    ) as caught:
        encoder.learn_one({"a": "x"})
    assert "category" not in str(caught.value)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_rows_without_features_are_learned_and_predicted(make):
    model = TableEncoder("city:category") | BSGDClassifier(budget=10)
    model.learn_many(make({"city": ["Oslo", "Rome"] * 20}), ["cold", "warm"] * 20)
    with pytest.warns(UserWarning, match=r"column 'city' has names that were never learned \(2 of 2 rows\): 'never', 'seen'"):
        assert len(list(model.predict_many(make({"city": ["never", "seen"]})))) == 2
    fresh = TableEncoder("city:category") | BSGDClassifier(budget=10)
    fresh.learn_many(make({"city": ["", ""], "a": [None, None]}), ["cold", "warm"])
    assert fresh["BSGDClassifier"].n_learned == 2


def test_numpy_values_are_encoded_like_python_values():
    encoder = TableEncoder("flag:category", missing="-999", when_missing="drop")
    for _ in range(2):
        encoder.learn_one({"flag": True, "a": 1.0})
    assert encoder.transform_one({"flag": np.bool_(True), "a": np.int64(3)}) == {"a": 3.0, "flag=true": 1.0}
    assert encoder.transform_one({"a": np.int64(-999)}) == encoder.transform_one({"a": np.float32(-999)}) == {}
    raises("feature 'a' is", encoder.transform_one, {"a": np.ones(2)})


def test_fields_of_a_dropped_object_are_not_learned():
    encoder = TableEncoder("meta:drop,a.c:drop")
    encoder.learn_one({"meta": {"p": 1, "q": {"r": 2}}, "a": {"b": 2, "c": 3}})
    assert encoder.learned_columns == ["a.b"]
    assert encoder.transform_one({"meta": {"p": 5}, "a": {"b": 4}}) == {"a.b": 4.0}


@pytest.mark.parametrize(
    ("options", "value", "mark"),
    [({"decimal": ","}, "9.2", "."), ({"decimal": "."}, "9,2", ","), ({"columns": 'a:quantity=",|kg"'}, "9.25", ".")],
)
def test_a_number_with_another_decimal_mark_is_no_missing_value(options, value, mark):
    encoder = TableEncoder(**options)
    with pytest.raises(ValueError, match=re.escape(f"Its decimal mark is {mark!r}, and that of the column is another one")):
        encoder.learn_one({"a": value})
    with pytest.raises(ValueError, match="If it marks a missing value"):
        encoder.learn_one({"a": "none"})
