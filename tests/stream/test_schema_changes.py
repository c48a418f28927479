"""Changes of a stream's schema during a run: each is reported once, can stop the run, and drift is not reported."""

import contextlib
import itertools
import json
import math
import random
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from river.datasets import synth

from chunks import InChunks
from lists import OF_RELEASE, pairs, sample
from saved import dumps
from streamsvm import BSGDClassifier
from streamsvm.stream import CheckpointFolder, IterableSource, LearningLoop, PredictionLoop, StreamError, open_source
from streamsvm.stream.monitor import Monitor
from streamsvm.stream.tables import TableEncoder, schema_watch

COLUMNS = "city:category,at:date"
CHANGED = 2700  # the first row with another schema
NAMES = [f"city {i}" for i in range(8)]


@pytest.fixture(autouse=True)
def short_histories(monkeypatch, request):
    if not request.node.name.startswith("test_drift"):
        monkeypatch.setattr(schema_watch, "_MIN_AGE", 4)
        monkeypatch.setattr(schema_watch, "_MISSING_WINDOWS", 5)
        monkeypatch.setattr(schema_watch, "_WARM_UP_WINDOWS", {"values": 2, "unknown": 4})


def make_rows(n, change=None, seed=0):
    rng, rows = random.Random(seed), []
    for i in range(n):
        x = {"a": round(rng.gauss(0.0, 1.0), 3), "b": rng.random(), "city": rng.choice(NAMES), "at": f"2026-01-{1 + i % 28:02d}"}
        if rng.random() < 0.1:
            x["b"] = None
        if change is not None and i >= CHANGED:
            change(rng, x)
        rows.append((x, x.get("a") is not None and i % 3 == 0))
    return rows


def rename(_, x):
    x["A"] = x.pop("a")


def drop(_, x):
    del x["a"]


def add(_, x):
    x["c"] = 1.0


def write_units(_, x):
    x["a"] = f"{x['a']} kg"


def write_other_dates(_, x):
    x["at"] = f"Jan {x['at'][-2:]}, 26"


def spell_otherwise(_, x):
    x["city"] = x["city"].upper()


def lose_values(rng, x):
    x["a"] = None if rng.random() < 0.7 else x["a"]


CHANGES = {
    rename: {("gone", "a"), ("new", "A")},
    drop: {("gone", "a")},
    add: {("new", "c")},
    write_units: {("unknown", "a")},
    write_other_dates: {("unknown", "at")},
    spell_otherwise: {("unknown", "city")},
    lose_values: {("missing", "a")},
}


@pytest.fixture
def open_rows(tmp_path):
    """A function that opens rows as a source, which is closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda kind, rows: stack.enter_context(open_source_of_rows(kind, rows, tmp_path))


def open_source_of_rows(kind, rows, folder):
    """The rows as dicts, JSON lines, or as two CSV files: the second one begins with the change."""
    if kind == "dicts":
        return IterableSource(rows)
    if kind == "jsonl":
        path = folder / "rows.jsonl"
        path.write_text("".join(json.dumps({**x, "y": y}) + "\n" for x, y in rows))
        return open_source(str(path), label="y", columns=COLUMNS)
    paths = []
    for part in filter(None, (rows[:CHANGED], rows[CHANGED:])):
        paths.append(folder / f"rows{len(paths)}.csv")
        names = [*part[0][0]]
        lines = [[("" if x[name] is None else f'"{x[name]}"') for name in names] + [str(y)] for x, y in part]
        paths[-1].write_text("\n".join(map(",".join, [[*names, "y"], *lines])) + "\n")
    return open_source([str(path) for path in paths], label="y", columns=COLUMNS)


def make_loop(loops, source, **options):
    model, limits = TableEncoder(COLUMNS) | BSGDClassifier(budget=5, seed=1), {"on_error": "skip", "error_share": 1.0}
    if loops == "learner":
        return LearningLoop(source, model, **limits, **options)
    for x, y in make_rows(300, seed=1):
        model.learn_one(x, y)
    return PredictionLoop(source, model, **limits, **options)


def get_events(caplog):
    return [record.fields for record in caplog.records if getattr(record, "fields", {}).get("event") == "schema"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("change_and_kind", "loops"), pairs(list(itertools.product(CHANGES, ["dicts", "jsonl", "csv"])), ["learner", "predictor"])
)
def test_each_change_is_reported_once(open_rows, caplog, change_and_kind, loops):
    """For a release all with a learner and with a predictor."""
    change, kind = change_and_kind
    loop = make_loop(loops, open_rows(kind, make_rows(6000 if change is lose_values else 4000, change)))
    loop.run()
    events = get_events(caplog)
    assert loop.schema.changes == dict.fromkeys(CHANGES[change], 1)
    assert sorted(tuple(item) for fields in events for item in fields["changes"]) == sorted(CHANGES[change])
    latest = {lose_values: 5000, drop: 2500}.get(change, 1000)
    assert all(CHANGED < fields["row"] <= CHANGED + latest for fields in events)
    assert f"column {next(iter(loop.schema.changes))[1]!r} " in "".join(caplog.messages)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["dicts", "jsonl", "csv"])
def test_rows_without_a_change_are_not_reported(open_rows, caplog, kind):
    loop = make_loop("learner", open_rows(kind, make_rows(4000)))
    loop.run()
    assert not loop.schema.changes
    assert not get_events(caplog)


def test_a_new_column_is_reported_once_if_its_first_window_lacks_it_in_some_rows(caplog):
    rows = make_rows(5000)
    for x, _ in rows[2020:]:
        add(None, x)
    loop = make_loop("learner", IterableSource(rows))
    loop.run()
    assert loop.schema.changes == {("new", "c"): 1}


def test_long_names_of_columns_are_cut(caplog):
    name = "n" * 100_000
    loop = make_loop("learner", IterableSource(make_rows(4000, lambda _, x: x.update({name: 1.0}))))
    loop.run()
    assert loop.schema.changes == {("new", name): 1}
    (text,) = [text for text in caplog.messages if "is new" in text]
    assert f"column 'nnn{'n' * 76} is new" in text


@pytest.mark.parametrize("counter", ["first", "counts", "changes"])
@pytest.mark.parametrize("key", ["values", 3, ("values",), ("x", "a"), ("values", "a", "b")])
def test_forged_columns_are_refused(counter, key):
    watch = schema_watch.SchemaWatch()
    with pytest.raises(ValueError, match="invalid columns"):
        watch.resume({**watch.state, counter: {key: 1}})


def test_a_return_to_normal_is_silent_and_rearms_the_warning(caplog):
    rows = make_rows(7000)
    for i in (*range(2000, 3500), *range(5000, 6500)):
        rename(None, rows[i][0])
    loop = make_loop("learner", IterableSource(rows))
    loop.run()
    assert loop.schema.changes["gone", "a"] == 2  # the second time later, because no other column is new
    assert [fields["row"] for fields in get_events(caplog) if ("gone", "a") in fields["changes"]] == [2500, 6500]


@pytest.mark.parametrize("loops", ["learner", "predictor"])
def test_a_run_that_resumes_within_a_change_does_not_repeat_the_warning(tmp_path, caplog, loops):
    rows = make_rows(4000, rename)
    whole = make_loop(loops, IterableSource(rows))
    whole.run()
    caplog.clear()
    for n in (CHANGED - 13, 90, 250, 170, 321, 700):
        with CheckpointFolder(tmp_path) as checkpoints:
            loop = make_loop(loops, IterableSource(rows), checkpoints=checkpoints)
            loop.run(max_rows=n)
    with CheckpointFolder(tmp_path) as checkpoints:
        loop = make_loop(loops, IterableSource(rows), checkpoints=checkpoints)
        loop.run()
    (fields,) = get_events(caplog)
    assert sorted(fields["changes"]) == sorted(CHANGES[rename])
    assert loop.schema.state == whole.schema.state
    assert loop.rows == 4000


def test_a_change_between_two_runs_is_reported(tmp_path, caplog):
    rows = make_rows(4000, rename)
    for part in (rows[:CHANGED], rows):
        with CheckpointFolder(tmp_path) as checkpoints:
            make_loop("learner", IterableSource(part), checkpoints=checkpoints).run()
    assert len(get_events(caplog)) == 1


@pytest.mark.parametrize("kind", ["dicts", "jsonl"])
@pytest.mark.parametrize("loops", ["learner", "predictor"])
def test_stop_ends_a_run_before_changed_rows_are_processed(tmp_path, open_rows, caplog, loops, kind):
    rows = make_rows(4000, rename)
    reference = make_loop(loops, open_rows(kind, rows))
    reference.run()
    caplog.clear()
    for _ in range(2):  # the second run stops immediately, and learns nothing more
        with CheckpointFolder(tmp_path / "state") as checkpoints:
            loop = make_loop(loops, open_rows(kind, rows), checkpoints=checkpoints, on_schema="stop")
            with pytest.raises(StreamError, match=r"'a' is gone.*fix the producer, or continue with --on-schema warn"):
                loop.run()
            assert checkpoints.newest().header["rows"] == loop.rows < CHANGED + 1000
    n_events = len(get_events(caplog))
    with CheckpointFolder(tmp_path / "state") as checkpoints:
        loop = make_loop(loops, open_rows(kind, rows), checkpoints=checkpoints, on_schema="warn")
        loop.run()
    assert len(get_events(caplog)) == n_events + 1 == 3
    assert loop.schema.changes == reference.schema.changes
    assert loop.progress.rows == 4000
    if loops == "learner":
        assert dumps(loop.model) == dumps(reference.model)


@pytest.mark.parametrize("n_first", [1, 100])
def test_a_run_that_stopped_processes_none_of_the_rows_when_few_are_available_at_first(tmp_path, n_first):
    rows, counts = make_rows(4000, rename), []
    for _ in range(3):
        source, sizes = InChunks(rows), itertools.chain([n_first], itertools.repeat(1000))
        source.random = SimpleNamespace(randint=lambda _, n, sizes=sizes: min(n, next(sizes)))
        source.read = lambda n, source=source: InChunks.read(source, n) or InChunks.read(source, n)
        with CheckpointFolder(tmp_path / "state") as checkpoints:
            loop = make_loop("learner", source, checkpoints=checkpoints, on_schema="stop")
            with pytest.raises(StreamError, match=rf"'a' is gone.*The run stops after {3000 + n_first:,} rows"):
                loop.run()
            counts.append((loop.rows, checkpoints.newest().header["position"]))
    assert counts == counts[:1] * 3


def test_an_unknown_reaction_is_refused():
    with pytest.raises(ValueError, match="on_schema must be 'warn' or 'stop', not 'halt'"):
        make_loop("learner", IterableSource([]), on_schema="halt")


def test_changes_are_in_metrics_and_on_the_page():
    with Monitor(loop := make_loop("learner", IterableSource(make_rows(4000, rename)))) as monitor:
        loop.run()
        loop.schema.changes["new", "\ud800"] = 1
        text = monitor.make_response("/metrics")[2].decode()
        notes = monitor.make_state()["notes"]
    assert 'streamsvm_schema_changes_total{column="a",kind="gone"} 1.0' in text
    assert r'{column="\\ud800",kind="new"} 1.0' in text
    assert "column 'a' is gone" in notes


def test_memory_is_bounded():
    rows = [({f"c{i * 40 + j}": 1.0 for j in range(40)}, i % 2) for i in range(3000)]
    loop = LearningLoop(IterableSource(rows), BSGDClassifier(budget=5, overflow="hash"), on_error="skip", error_share=1.0)
    loop.run()
    assert len(loop.schema.state["first"]) <= 500


def switch(make, first, second, width):
    """Rows of two generators, with a change at row 10,000 that takes ``width`` rows."""
    if width == 1:
        return [x for i in (first, second) for x, _ in make(i).take(10_000)]
    return [x for x, _ in synth.ConceptDriftStream(make(first), make(second), seed=1, position=10_000, width=width).take(20_000)]


def take(stream):
    return [x for x, _ in stream.take(20_000)]


def naturally(make_row):
    rng = np.random.default_rng(0)
    return [make_row(rng, i) for i in range(20_000)]


STREAMS = {
    f"{name} {width}": partial(switch, make, first, second, width)
    for number, (name, (make, first, second)) in enumerate(
        {
            "SEA": (lambda i: synth.SEA(variant=i, seed=i), 0, 3),
            "Agrawal": (lambda i: synth.Agrawal(classification_function=i, seed=i), 0, 4),
            "STAGGER": (lambda i: synth.STAGGER(classification_function=i, seed=i), 0, 2),
            "Sine": (lambda i: synth.Sine(classification_function=i, seed=i), 0, 2),
            "Mixed": (lambda i: synth.Mixed(classification_function=i, seed=i), 0, 1),
            "LEDDrift": (lambda i: synth.LEDDrift(n_drift_features=i, seed=i, irrelevant_features=True), 0, 7),
            "RandomTree": (lambda i: synth.RandomTree(seed_tree=i, seed_sample=i), 1, 2),
            "RandomRBF": (lambda i: synth.RandomRBF(seed_model=i, seed_sample=i), 1, 2),
        }.items()
    )
    for width in ((1, 2000) if OF_RELEASE else (1, 2000)[number % 2 :][:1])
}
STREAMS |= {
    "Hyperplane": lambda: take(synth.Hyperplane(seed=1, n_drift_features=5, mag_change=0.5)),
    "RandomRBFDrift": lambda: take(synth.RandomRBFDrift(seed_model=1, seed_sample=1, change_speed=0.9, n_drift_centroids=50)),
    **{
        f"FriedmanDrift {kind}": lambda kind=kind, position=position: take(
            synth.FriedmanDrift(drift_type=kind, position=position, transition_window=1000, seed=1)
        )
        for kind, position in (("lea", (5000, 10_000, 15_000)), ("gra", (8000, 14_000)), ("gsg", (8000, 14_000)))
    },
    "shifted numbers": lambda: naturally(
        lambda r, i: {"a": r.normal(3 * (i > 9000), 1 + 2 * (i > 9000)), "b": r.exponential(1 + i)}
    ),
    "changing shares of categories": lambda: naturally(
        lambda r, i: {"c": f"n{(int(r.geometric(0.2)) + i // 4000 * 5) % 30}", "v": r.normal()}
    ),
    "waves of missing values": lambda: naturally(
        lambda r, i: {"a": None if r.random() < 0.25 + 0.2 * math.sin(i / 900) else 1.5, "b": 2.0}
    ),
    "ever more missing values": lambda: naturally(lambda r, i: {"a": None if r.random() < i / 25_000 else 1.5, "b": 2.0}),
    **{
        f"bursts of {n}": lambda n=n: naturally(lambda _, i: {"a": None if i % 4000 >= 4000 - n else 1.5, "b": 2.0})
        for n in (50, 400, 900)
    },
    "sparse columns": lambda: naturally(lambda r, _: {"a": 1.0, **{f"s{j}": 1.0 for j in np.flatnonzero(r.random(40) < 0.03)}}),
    "words": lambda: naturally(lambda r, _: {f"w{int(j)}": 1.0 for j in r.zipf(1.3, 8) if j < 5000}),
    "a trickle of new categories": lambda: naturally(
        lambda r, i: {"c": f"n{int(r.integers(max(0, i // 100 - 30), i // 100 + 1))}"}
    ),
    "a new category each day": lambda: naturally(lambda r, i: {"c": f"day {i // 1440}", "d": f"n{int(r.integers(20))}"}),
    "ids": lambda: naturally(lambda _, i: {"c": f"id {i}"}),
    "a few texts": lambda: naturally(lambda r, _: {"a": "n/a" if r.random() < 0.03 else 2.0, "b": 1.0}),
    "producers that take turns": lambda: naturally(
        lambda _, i: ({"a": 1.0, "t": 2.0}, {"b": 1.0, "t": 2.0}, {"c": "x", "t": 1.0}, {"a": 1.0})[
            (i + (i > 9000) + (i > 15_000)) % 4
        ]
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", sample(10, STREAMS))
def test_drift_is_no_change_of_the_schema(name):
    """For a release with all streams, and with each generator's abrupt and slow change."""
    rows = STREAMS[name]()
    categories = {key: "category" for x in rows[:50] for key, value in x.items() if isinstance(value, str) and key != "a"}
    shorter_rows = [{k: v for k, v in x.items() if v is not None} for x in rows]
    for variant in (rows, shorter_rows) if rows != shorter_rows else (rows,):  # missing values as null, and left out
        source = IterableSource([(x, None) for x in variant])
        watch, i = schema_watch.SchemaWatch(), 0
        while (chunk := source.read(1000)) is not None:
            assert watch.add_chunk(source, chunk, None, i, TableEncoder(categories) if categories else None) == ""
            i += len(chunk)
