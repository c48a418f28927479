"""Labels and categories that a model has never learned are reported by each command, for each format."""

import json
import random

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import ipc

from streamsvm import BSGDClassifier, load, table_model
from streamsvm.batch.tables import TableClassifier
from streamsvm.stream import ColumnMonitor, IterableSource, PredictionLoop

pytestmark = pytest.mark.once  # these are many rows


def make_frame(n, seed, labels=(0, 1), **changes):
    rng = random.Random(seed)
    rows = [{"zip": str(rng.randrange(3)), "city": rng.choice(["Oslo", "Paris"]), "a": rng.gauss(0.0, 1.0)} for _ in range(n)]
    frame = pd.DataFrame(rows).assign(y=[labels[row["a"] > 0.0] for row in rows])
    return frame.replace({name: {old: new} for name, (old, new) in changes.items()})


def write_file(frame, path):
    """Write a frame to a file in the format of its name."""
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        table = pa.Table.from_pandas(frame, preserve_index=False)
        with ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    return path


def build_words(command, path, state, tmp_path):
    return {
        "score": ["score", path, "--model", state],
        "predict": ["predict", path, "--model", state, "--to", tmp_path / f"{path.name}.out.jsonl"],
        "explain": ["explain", path, "--model", state],
        "report": ["report", state, path, "--to", tmp_path / f"{path.name}.html"],
    }[command]


@pytest.fixture(scope="module", params=["bsgd,budget=20", "linear"])  # an encoder has a scaler before a linear model
def state(request, tmp_path_factory):
    from streamsvm.cli.main import main

    folder = tmp_path_factory.mktemp("unknown")
    path = write_file(make_frame(200, 0), folder / "rows.csv")
    words = ["learn", path, "--label", "y", "--columns", "zip:category,city:category", "--learner", request.param]
    main([*map(str, words), "--checkpoint", str(folder / "state"), "--quiet"])
    return folder / "state"


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".arrow"])
@pytest.mark.parametrize("command", ["score", "predict", "explain", "report"])
def test_unknown_labels_and_categories_are_reported_once(command, suffix, state, call, tmp_path):
    learned = write_file(make_frame(60, 1), tmp_path / f"learned{suffix}")
    assert "never learned" not in call(*build_words(command, learned, state, tmp_path)).stderr
    frame = make_frame(60, 1, ("no", "yes"), zip=("1", "01"), city=("Paris", "paris"))
    frame.loc[0, "city"] = "Rome"
    lines = call(*build_words(command, write_file(frame, tmp_path / f"other{suffix}"), state, tmp_path)).stderr.splitlines()
    messages = [line for line in lines if "never learned" in line]
    n_zip, n_city = (frame["zip"] == "01").sum(), frame["city"].isin(["paris", "Rome"]).sum()
    assert sorted(messages) == [
        f"column 'city' has names that were never learned ({n_city} of 60 rows): 'paris' (like 'Paris'), 'Rome'",
        f"column 'zip' has names that were never learned ({n_zip} of 60 rows): '01' (like '1')",
        next(line for line in messages if line.startswith("labels that were never learned (60 of 60 rows): ")),
    ]
    assert any("'yes'" in line and "'no'" in line and "Learned were 0, 1" in line for line in messages)


@pytest.mark.parametrize("command", ["score", "predict", "explain", "report"])
@pytest.mark.parametrize(("labels", "is_unknown"), [(("0", "1"), True), ((False, True), False), ((0.0, 1.0), False)])
def test_labels_of_another_type_are_reported_unless_they_are_equal(command, labels, is_unknown, state, call, tmp_path):
    path = write_file(make_frame(40, 2, labels), tmp_path / "typed.jsonl")
    said = call(*build_words(command, path, state, tmp_path)).stderr
    assert ("'1' (like 1)" in said and "Learned were 0, 1" in said) is is_unknown
    assert ("never learned" in said) is is_unknown


def test_labels_that_come_later_are_compared_too(state, call, tmp_path):
    frame = make_frame(60, 1, ("no", "yes")).assign(id=range(60), t=range(60))
    rows, labels = write_file(frame.drop(columns="y"), tmp_path / "rows.csv"), tmp_path / "labels.csv"
    write_file(frame[["id", "t", "y"]], labels)
    said = call("score", rows, "--model", state, "--labels", f"{labels}?key=id&time=t", "--label", "y").stderr
    assert "labels that were never learned" in said


def test_facts_of_a_run_count_unknown_labels(state, call, tmp_path):
    path = write_file(make_frame(50, 3, ("no", "yes")), tmp_path / "words.csv")
    done = call("predict", path, "--model", state, "--to", tmp_path / "out.csv", "--log-format", "json")
    facts = json.loads(done.stderr.splitlines()[-1])
    assert sum(facts["unknown_labels"].values()) == 50


def test_names_of_hashed_target_encodings_have_near_matches(tmp_path):
    cities = [f"city {chr(97 + i // 26)}{chr(97 + i % 26)}".title() for i in range(200)]
    rows = [{"city": cities[i % 200], "code": str(i % 150), "y": i % 3 > 0} for i in range(1200)]
    model = table_model(pd.DataFrame(rows), "y", learner=BSGDClassifier(20), columns="code:category")
    model.learn_many(pd.DataFrame(rows))
    new = pd.DataFrame([{"city": cities[150].lower(), "code": "0149"}, {"city": "CITY GP", "code": "7"}])
    with pytest.warns(UserWarning, match="never learned") as warned:
        model.predict_many(new)
    texts = [str(warning.message) for warning in warned]
    assert texts == [
        f"column 'city' has names that were never learned (2 of 2 rows): '{cities[150].lower()}' (like '{cities[150]}'), "
        "'CITY GP' (like 'City Gp')",
        "column 'code' has names that were never learned (1 of 2 rows): '0149' (like '149')",
    ]


def test_frames_in_python_cause_warnings(state):
    frame, other = make_frame(120, 4), make_frame(120, 4, zip=("1", "01"))
    model = TableClassifier(BSGDClassifier(20), columns="zip:category", random_state=0).fit(frame.drop(columns="y"), frame["y"])
    X, new = frame.drop(columns="y"), other.drop(columns="y")
    model.predict(X), model.predict_proba(X), model.score(X, frame["y"]), model.predict(X[:1].assign(a=None))  # no warning
    assert load(state).score(frame) > 0.8  # nor of the label in the frame
    many = model.model_.predict_many, model.model_.predict_proba_many
    for call in (model.predict, model.predict_proba, lambda X: model.score(X, frame["y"]), *many):
        with pytest.warns(UserWarning, match=r"column 'zip' has names that were never learned \(\d+ of 120 rows\): '01'"):
            call(new)
    for call in (model.score, model.model_.score):
        with pytest.warns(UserWarning, match=r"labels that were never learned \(120 of 120 rows\): 1[01], 1[01]\. Learned were"):
            call(X, frame["y"] + 10)
    with pytest.warns(UserWarning, match="column 'a' was learned, and no row has it"):
        model.model_.predict_many(X[["zip", "city"]])
    few = frame.assign(city=["Rome"] * 50 + frame["city"].tolist()[50:])
    model.predict(few.drop(columns="y"))  # rare new names are usual
    pipeline = load(state)
    with pytest.warns(UserWarning, match="column 'zip' has names"):
        pipeline.predict_many(new)


def test_memory_of_unknown_values_is_bounded():
    monitor = ColumnMonitor(["a"], labels=["x", "y"])
    monitor.add_labels([f"label {i}" * 100 for i in range(10_000)])
    monitor.add_labels(["label 3" * 100, "x", None, float("nan")])
    assert len(monitor.state["unknown_values"]) == 11
    assert "(10,001 of 0 rows)" in monitor.messages[-1]


def test_a_run_that_resumes_keeps_its_counts_and_reads_older_ones(tmp_path):
    monitor = ColumnMonitor(["a"], labels=["x", "y"])
    monitor.add_labels(["z", "Y"])
    other = ColumnMonitor(["a"], labels=["x", "y"])
    other.resume(monitor.state)
    other.add_labels([f"label {i}" for i in range(20)])
    assert len(other.state["unknown_values"]) == 11
    assert "'Y' (like 'y')" in other.messages[-1]
    older = monitor.state | {"unknown_names": {"city": 3}}
    del older["unknown_values"]
    other.resume(older)
    assert other.counts["unknown_names"] == {"city": 3}


def test_sources_of_python_rows_report_labels(state):
    model = load(state)
    rows = [({"zip": "1", "city": "Oslo", "a": float(i)}, "yes") for i in range(30)]
    loop = PredictionLoop(IterableSource(rows), model, metric="Accuracy")
    loop.run()
    assert "labels that were never learned (30 of 30 rows): 'yes'. Learned were" in loop.columns.messages[-1]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".arrow"])
def test_a_misspelt_label_is_corrected(suffix, state, call, tmp_path):
    path = write_file(make_frame(30, 0).rename(columns={"y": "Price"}), tmp_path / f"rows{suffix}")
    for words in (["learn", path, "--learner", "bsgd,budget=5"], ["score", path, "--model", state]):
        assert call(*words, "--label", "pirce", status=1).stderr.endswith("Perhaps 'Price'\n")
    if suffix == ".jsonl":
        first_look = call("learn", path, "--label", "pirce", "--learner", "bsgd,budget=5", status=1).stderr
        assert "no row has it. Perhaps 'Price'\n" in first_look
        first_look = call("learn", path, "--label", "Price", "--columns", "Zip:category", "--learner", "bsgd,budget=5").stderr
        assert "no row has it. Perhaps 'zip'\n" in first_look
    for data in (str(path), make_frame(30, 0).rename(columns={"y": "Price"})):
        with pytest.raises(ValueError, match=r"there is no column 'pirce' for the label.*\. Perhaps 'Price'"):
            table_model(data, "pirce")
        with pytest.raises(ValueError, match=r"there is no column 'Zip'.*\. Perhaps 'zip'"):
            table_model(data, "Price", columns="Zip:drop")
        with pytest.raises(ValueError, match=r"there is no column 'nothing like it' for the label.*\. Perhaps label='Price'"):
            table_model(data, "nothing like it")


@pytest.mark.filterwarnings("default")
def test_a_column_that_is_gone_is_reported_once(state, call, tmp_path):
    path = write_file(make_frame(150, 0).rename(columns={"a": "A"}), tmp_path / "rows.csv")
    for command in ("score", "predict", "report"):
        lines = call(*build_words(command, path, state, tmp_path)).stderr.splitlines()
        assert sum("'a' is gone" in line or "'a' was learned, and no row has it" in line for line in lines) == 1
        assert sum("Is it 'a'? It is written 'A'" in line for line in lines) == 1


def test_many_unknown_columns_are_one_line():
    monitor = ColumnMonitor(["a"])
    for i in range(50):
        monitor.add_row({"a": 1.0, f"new {i}": 1.0})
    assert len(monitor.messages) == 1
    assert monitor.messages[0].startswith("50 columns were never learned: they are left out ('new 0', 'new 1', ")
