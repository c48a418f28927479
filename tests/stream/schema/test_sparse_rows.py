"""Rows that name only what they have: an absent number is 0 through every door."""

import json
import random
import re

import pandas as pd
import polars as pl
import pytest

from streamsvm import BSGDClassifier, table_model
from streamsvm.batch.tables import TableClassifier
from streamsvm.stream.schema.encoder_options import are_absent_numbers_zero

WORDS = [f"w{i}" for i in range(12)]


def make_rows(n=300, counts=False, seed=0):
    rng = random.Random(seed)
    for _ in range(n):
        is_spam = rng.random() < 0.5
        x = {word: rng.choice([1, 1, 1, 2, 3]) if counts else 1 for word in rng.sample(WORDS, 3)}
        if rng.random() < (0.9 if is_spam else 0.05):
            x["viagra"] = 1
        yield x, "spam" if is_spam else "ham"


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps({**x, "y": y}) + "\n" for x, y in rows))
    return path


def make_frame(rows):
    return pd.DataFrame([{**x, "y": y} for x, y in rows])


def measure_accuracy(model, rows):
    hits = []
    for x, y in rows:
        hits += [model.predict_one(x) == y] if model.predict_one(x) is not None else []
        model.learn_one(x, y)
    return sum(hits) / len(hits)


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("more", [{}, {"id": 1}, {"city": "Oslo"}])
@pytest.mark.parametrize("door", ["jsonl", "csv", "parquet"])
def test_files_and_other_columns_make_no_difference(door, more, counts, tmp_path, call):
    rows = list(make_rows(counts=counts))
    rows = [({**{name: i if name == "id" else value for name, value in more.items()}, **x}, y) for i, (x, y) in enumerate(rows)]
    path = tmp_path / f"rows.{door}"
    if door == "jsonl":
        write_jsonl(path, rows)
    elif door == "csv":
        make_frame(rows).to_csv(path, index=False)
    else:
        make_frame(rows).to_parquet(path)
    said = call("learn", path, "--label", "y", "--learner", "bsgd,budget=50").stderr
    accuracy, model = float(re.search(r"Accuracy ([\d.]+)", said)[1]), BSGDClassifier(50, seed=0)
    assert "city" in more or accuracy == pytest.approx(measure_accuracy(model, list(make_rows(counts=counts))), abs=5e-5)
    assert accuracy > (0.7 if counts else 0.8)
    assert "absent, so 0, in " in said
    assert ("--when-missing drop" in said) is bool(more)


def test_a_flag_overrides_what_was_inferred(tmp_path, call):
    path = write_jsonl(tmp_path / "rows.jsonl", [({"id": i, **x}, y) for i, (x, y) in enumerate(make_rows(100))])
    said = call("learn", path, "--label", "y", "--learner", "bsgd,budget=20", "--when-missing", "mean").stderr
    assert "--when-missing drop" not in said
    words = ["learn", path, "--label", "y", "--ask", "--columns", "id:drop"]
    call(*words, status=1, says="absent numbers may be 0 or missing, and need an answer. Try: --when-missing drop")
    call(*words, "--when-missing", "drop", "--learner", "bsgd,budget=5")
    assert table_model(str(path), "y").schema.options["when_missing"] == "drop"
    assert table_model(str(path), "y", when_missing="mean").schema.options["when_missing"] == "mean"


def test_doors_in_python_make_one_model(tmp_path):
    rows = list(make_rows())
    frame = make_frame(rows)
    tables = {
        "jsonl": str(write_jsonl(tmp_path / "rows.jsonl", rows)),
        "dicts": [{**x, "y": y} for x, y in rows],
        "pandas": frame,
        "polars": pl.from_pandas(frame),
        "booleans": [{**dict.fromkeys(x, True), "y": y} for x, y in rows],
    }
    models = {door: table_model(table, "y", learner=BSGDClassifier(50)) for door, table in tables.items()}
    pairs = table_model(rows, learner=BSGDClassifier(50))
    accuracies = {door: measure_accuracy(model, rows) for door, model in {**models, "pairs": pairs}.items()}
    assert len(set(accuracies.values())) == 1
    assert accuracies["dicts"] > 0.8
    by_frame = table_model(frame, "y", learner=BSGDClassifier(50))
    by_frame.learn_many(frame)
    xs = [x for x, _ in rows[:50]]
    assert [by_frame.predict_one(x) for x in xs] == [models["dicts"].predict_one(x) for x in xs]
    classifier = TableClassifier(BSGDClassifier(50), random_state=0).fit(frame.drop(columns="y"), frame["y"])
    assert classifier.score(frame.drop(columns="y"), frame["y"]) > 0.8


def test_tables_with_gaps_are_ordinary():
    rng = random.Random(0)
    few_gaps = [{name: rng.gauss(0.0, 1.0) for name in "abcdef" if rng.random() < 0.9} for _ in range(100)]
    assert are_absent_numbers_zero(few_gaps, list("abcdef")) is False
    one_column = [{"a": 1.0 * i} | ({"b": 0.5 * i} if i % 4 == 0 else {}) for i in range(100)]
    assert are_absent_numbers_zero(one_column, ["a", "b"]) is False
    with_zeros = [{name: rng.randrange(3) for name in rng.sample(WORDS, 3)} for _ in range(100)]
    assert are_absent_numbers_zero(with_zeros, WORDS) is None
    constant = [{"a": i, "b": 7} if i % 10 else {"a": i} for i in range(100)]
    assert are_absent_numbers_zero(constant, ["a", "b"]) is False
    assert are_absent_numbers_zero([{"a": 1}, {}] * 5, ["a"]) is False
    assert are_absent_numbers_zero([{}] * 50, ["a"]) is False


@pytest.mark.parametrize("door", ["jsonl", "dicts"])
def test_rows_that_may_be_sparse_cause_one_warning(door, tmp_path):
    rng = random.Random(0)
    rows = [({**x, **({"age": rng.randint(18, 90)} if i % 10 else {})}, y) for i, (x, y) in enumerate(make_rows(100))]
    data = str(write_jsonl(tmp_path / "rows.jsonl", rows)) if door == "jsonl" else [{**x, "y": y} for x, y in rows]
    with pytest.warns(UserWarning, match="many numbers are absent.*--when-missing drop") as warned:
        assert "when_missing" not in table_model(data, "y").schema.options
    assert len(warned) == 1
    assert table_model(data, "y", when_missing="drop").schema.options["when_missing"] == "drop"
