"""Small random tables make one model through each door, or the doors say why not."""

import gzip
import json
import random
from contextlib import closing

import pandas as pd
import pytest

import doors
import random_tables
from lists import OF_RELEASE, in_turn
from random_tables import Column, Table
from streamsvm import BSGDClassifier, BSGDRegressor, table_model

N = 90


def describe_silent(seeds, folder, **options):
    """Try the tables of some seeds; returns the differences without a message, and the number of equal results."""
    bad, n_equal = [], 0
    for seed in seeds:
        table, trial, problem = doors.try_table(seed, folder, **options)
        bad += [(seed, problem)] * bool(problem)
        bad += [(seed, table.kinds, *outcome) for outcome in trial.outcomes if outcome[1] in doors.SILENT]
        n_equal += sum(outcome[1] == "equal" for outcome in trial.outcomes)
    return bad, n_equal


def test_random_tables_make_one_model(tmp_path):
    """Of ten tables before a release."""
    seeds = range(5000, 5010 if OF_RELEASE else 5005)
    bad, n_equal = describe_silent(seeds, tmp_path, n_formats=2, n_doors=2)
    assert bad == []
    assert n_equal > 6 * len(seeds)


@pytest.mark.thorough
def test_more_random_tables_make_one_model(tmp_path):
    """Of twenty tables before a release."""
    seeds = range(6000, 6020 if OF_RELEASE else 6005)
    bad, n_equal = describe_silent(seeds, tmp_path)
    assert bad == []
    assert n_equal > 10 * len(seeds)


def test_trials_find_differences(tmp_path, monkeypatch):
    """A format that loses a digit is noticed."""
    table = make_table(random_tables.make_values(random.Random(0), "number", N), "number")
    changed = make_table(([f"{float(text) + 1e-3:.6e}" for text in table.columns[0].texts], []), "number")
    monkeypatch.setitem(random_tables.FILES, "text jsonl", lambda _, *rest: random_tables.write_text_jsonl(changed, *rest))
    trial = doors.Trial(table, tmp_path, random.Random(0), ["text jsonl"], [])
    trial.run()
    assert ("learn text jsonl", "silent") in [outcome[:2] for outcome in trial.outcomes]


def make_table(cells, kind, labels=None):
    """Return a table of a column ``v`` with these texts and values, a number, and a label."""
    texts, values = cells
    rng = random.Random(1)
    numbers = [round(rng.gauss(0.0, 1.0), 3) for _ in texts]
    labels = labels or ["yes" if rng.random() < 0.5 else "no" for _ in texts]
    columns = [Column("v", kind, texts, values or texts), Column("b", "number", list(map(str, numbers)), numbers)]
    return Table([*columns, Column("y", "label", list(map(str, labels)), labels)], isinstance(labels[0], float), "random")


KINDS = {kind: random_tables.make_values(random.Random(2), kind, N) for kind in dict.fromkeys(random_tables.KINDS)}
FORMATS, DOORS = ["dialect", "jsonl", "text parquet", "parquet"], ["pipe", "estimator", "absent dicts", "polars"]
#: Formats and doors for each kind: all of them before a release, otherwise one half in turn.
PARTS = [slice(None)] if OF_RELEASE else [slice(0, None, 2), slice(1, None, 2)]


@pytest.mark.parametrize(("kind", "part"), in_turn(KINDS, *PARTS), ids=str)
def test_each_kind_makes_one_model_through_all_doors(tmp_path, kind, part):
    """Through half of the doors for a kind; before a release, through all of them for each."""
    trial = doors.Trial(make_table(KINDS[kind], kind), tmp_path, random.Random(3), FORMATS[part], DOORS[part])
    trial.run()
    assert [outcome for outcome in trial.outcomes if outcome[1] in doors.SILENT] == []
    # A model of dates or booleans in another form refuses rows of other formats, and one of commas those between semicolons.
    refused = {door for door, outcome, _ in trial.outcomes if outcome != "equal"}
    assert all(
        door.startswith(("predict", "score", "explain", "report", "csv after")) or "dialect" in door for door in refused
    ), refused


@pytest.mark.parametrize("door", ["csv", "jsonl", "parquet", "dicts", "pandas"])
def test_missing_numbers_are_replaced_by_their_mean(tmp_path, door):
    """Also if all columns are numbers."""
    rng = random.Random(0)
    values = [None if rng.random() < 0.2 else 50.0 + rng.gauss(0.0, 1.0) for _ in range(N)]
    table = make_table(([None if value is None else str(value) for value in values], values), "number")
    trial = doors.Trial(table, tmp_path, rng, ["jsonl", "parquet"], [])
    if door in trial.paths:
        model = trial.learn(door, trial.paths[door]).value
    else:
        data = random_tables.FRAMES[door](table)
        model = trial.learn_in_python("one" if door == "dicts" else "many", data, BSGDClassifier(20)).value
    assert model["TableEncoder"].transform_one({"b": 1.0})["v"] == pytest.approx(50.0, abs=0.5)


@pytest.mark.parametrize("name", ["csv", "jsonl", "absent"])
def test_gaps_after_the_first_rows_are_means_or_pointed_out(tmp_path, monkeypatch, name):
    """A file with gaps is read with their mean. The learner of a pipe whose first rows have none takes a later one for 0."""
    monkeypatch.setattr("streamsvm.stream.lines._CHUNK_BYTES", 2**12)  # of a pipe: the gaps come later
    rng = random.Random(0)
    values = [None if i > 500 and i % 3 == 0 else round(rng.gauss(9.0, 1.0), 3) for i in range(600)]
    table = make_table(([value and str(value) for value in values], values), "number")
    trial = doors.Trial(table, tmp_path, rng, [name], [])
    path = trial.paths[name]
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    pipe = trial.learn("pipe", "-", data, "--format", "csv" if name == "csv" else "jsonl")
    predicted = trial.predict(path, tmp_path / "model pipe")
    for messages in (pipe.messages, predicted.messages):
        assert [("row 502 lacks 'v', which counts as 0" in message) for message in messages if "lacks" in message] == [True]
    again = trial.learn("again", "-", data, "--format", "csv" if name == "csv" else "jsonl", "--when-missing", "mean")
    assert doors.model_bytes(again.value) == doors.model_bytes(trial.learn(name, path).value) != doors.model_bytes(pipe.value)


@pytest.mark.parametrize(
    "make_row",
    [
        lambda rng: {f"w{k}": 1 + (k > 3) for k in rng.sample(range(40), 3)},
        lambda rng: {"a": 2.0 + rng.random(), **({"new": 1} if rng.random() < 0.3 else {})},
    ],
    ids=["words", "flags"],
)
def test_absent_words_and_flags_of_a_pipe_are_no_gaps(make_row):
    rng = random.Random(0)
    data = "".join(json.dumps({**make_row(rng), "y": rng.choice("pq")}) + "\n" for _ in range(400)).encode()
    messages = doors.call("learn", "-", "--format", "jsonl", "--label", "y", "--learner", doors.LEARNER, stdin=data)[2]
    assert not any("lacks" in message for message in messages)


@pytest.mark.parametrize("door", ["csv", "text jsonl", "text parquet", "text dicts"])
@pytest.mark.parametrize(("name", "make_text", "kind"), [("id", str, "drop"), ("zip", "{:05d}".format, "category")])
def test_ids_and_codes_sent_as_text_are_recognised(tmp_path, name, make_text, kind, door):
    rng = random.Random(0)
    numbers = list(range(1, N + 1)) if name == "id" else [rng.choice([60601, 60605, 2139, 94110, 10001]) for _ in range(N)]
    table = make_table((list(map(make_text, numbers)), []), "code")
    table.columns[0].name = name
    data = random_tables.FRAMES[door](table) if door == "text dicts" else random_tables.FILES[door](table, tmp_path, rng)
    model = table_model(data if isinstance(data, list) else str(data), "y", learner=BSGDClassifier(20))
    assert model.schema.options["columns"][name] == kind


@pytest.mark.parametrize("door", ["csv", "jsonl"])
def test_codes_beside_gaps_are_recognised(tmp_path, door):
    rng = random.Random(0)
    codes = [rng.choice(["60601", "60605", "94110", "10001", "NA"]) for _ in range(N)]
    table = make_table((codes, []), "code")
    table.columns[0].name = "zip"
    path = random_tables.FILES[door](table, tmp_path, rng)
    assert table_model(str(path), "y", learner=BSGDClassifier(20)).schema.options == {
        "columns": {"zip": "category"},
        "missing": ["NA"],
    }


@pytest.mark.parametrize("door", ["csv", "parquet", "dicts"])
def test_each_column_has_its_decimal_mark(tmp_path, door):
    """A decimal comma in one column does not change the points of another, or of the target."""
    rng = random.Random(0)
    numbers = [rng.uniform(10.0, 99.0) for _ in range(N)]
    table = make_table(
        ([f"{number:.2f}".replace(".", ",") for number in numbers], []), "comma", [round(n, 3) + 0.0005 for n in numbers]
    )
    limits = [f"<{number:.1f}" if number < 30 else f"{number:.1f}" for number in numbers]
    table.columns.insert(1, Column("level", "limit", limits, limits))
    data = random_tables.FRAMES[door](table) if door == "dicts" else str(random_tables.FILES[door](table, tmp_path, rng))
    model = table_model(data, "y", learner=BSGDRegressor(20))
    kinds = model.schema.options["columns"]
    assert kinds["v"] == "quantity=,"
    assert kinds["level"].startswith("quantity=<")
    x = {"v": "12,50", "level": "45.5", "b": "1.5"}
    model["TableEncoder"].learn_one(x)
    assert model["TableEncoder"].transform_one(x) == pytest.approx({"v": 12.5, "level": 45.5, "b": 1.5})
    assert model.parse_labels(["45.195", 45.195]) == [45.195] * 2


@pytest.mark.parametrize(("kind", "other"), [("exponent", "decimal comma"), ("date", "number")])
def test_columns_are_read_alike_beside_others(tmp_path, kind, other):
    """An exponent beside a decimal comma is not a group of thousands, and ``nan`` among dates is missing beside other markers."""
    table = make_table(random_tables.make_values(random.Random(9), kind, N), kind)
    table.columns.insert(1, Column("w", other, *map(list, KINDS[other])))
    for column, marker in zip(table.columns, ["nan", "-"], strict=False):
        column.texts[5], column.values[5] = marker, None
    trial = doors.Trial(table, tmp_path, random.Random(0), ["jsonl", "text parquet"], ["text dicts"])
    trial.run()
    learned = {door: outcome for door, outcome, _ in trial.outcomes if door.startswith(("learn", "one"))}
    assert learned == dict.fromkeys(["learn jsonl", "learn text parquet", "one text dicts"], "equal")


def test_a_target_keeps_its_decimal_point(tmp_path, call):
    rng = random.Random(0)
    numbers = [rng.uniform(10.0, 99.0) for _ in range(N)]
    table = make_table(
        ([f"{number:.2f}".replace(".", ",") for number in numbers], []), "comma", [round(n, 2) + 0.005 for n in numbers]
    )
    path = random_tables.write_plain_csv(table, tmp_path, rng)
    done = call("learn", path, "--label", "y", "--regression", "--learner", "bsgd,budget=20", "--quiet")
    assert done.end["metric"] < 50.0


def test_whole_targets_are_no_classes():
    rows = [{"shop": f"s{i % 9}", "y": i % 7 + 10 * (i % 9)} for i in range(N)]
    frame = pd.DataFrame(rows)
    model = table_model(frame, "y", learner=BSGDRegressor(20), columns="shop:category")
    model.learn_many(frame)
    assert "shop~" in model["BSGDRegressor"].feature_names


def test_a_label_may_be_absent_from_the_first_row(tmp_path):
    rows = [{"a": i % 5, "b": i % 3, **({"y": "pq"[i % 2]} if i > 2 else {})} for i in range(60)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert table_model(str(path), "y", learner=BSGDClassifier(20)).label == "y"


def test_numbers_sent_as_text_may_be_sparse(tmp_path):
    rng = random.Random(0)
    rows = [{**{f"w{k}": "1" for k in rng.sample(range(6), 2)}, "y": "pq"[i % 2]} for i in range(N)]
    assert table_model(rows, "y", learner=BSGDClassifier(20)).schema.options["when_missing"] == "drop"


@pytest.mark.thorough
def test_a_topic_makes_the_model_of_a_file(tmp_path):
    kafka = pytest.importorskip("kafka")
    from streamsvm_kafka import EmbeddedBroker

    with (
        EmbeddedBroker() as broker,
        closing(kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, **broker.client)) as producer,
    ):
        for seed in range(7000, 7005):
            table = random_tables.make_table(random.Random(seed))
            (folder := tmp_path / str(seed)).mkdir()
            trial = doors.Trial(table, folder, random.Random(seed), ["jsonl"], [])
            for row in random_tables.json_rows(table, nested=True):
                producer.send(f"rows{seed}", row.encode(), partition=0)
            producer.flush()
            expected = trial.learn("jsonl", trial.paths["jsonl"])
            topic = trial.learn("topic", broker.url(f"rows{seed}"), None, "--stop-at-end")
            same = None not in (topic.value, expected.value) and doors.model_bytes(topic.value) == doors.model_bytes(
                expected.value
            )
            assert same or topic.reason or expected.reason, (seed, doors.describe(topic.value), doors.describe(expected.value))
