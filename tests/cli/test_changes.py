"""A run with checkpoints in a folder changes: it continues with its model, or is refused with the flag that keeps it."""

import json
import re
import shutil
from types import SimpleNamespace

import pytest

from changes import CHANGES, FIRST, Change, N, check_change, make_rows
from saved import dumps
from streamsvm import save
from streamsvm.cli import learn
from streamsvm.cli.main import main
from streamsvm.stream import CheckpointFolder, CSVSource, IterableSource, LearningLoop
from streamsvm.stream.checkpoint import read_newest
from streamsvm.stream.monitor import Monitor
from streamsvm.stream.rows import find_learner


def write(path, rows):
    path.write_text("".join([",".join(rows[0]) + "\n", *(",".join(map(str, row.values())) + "\n" for row in rows)]))


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A folder with the sources, where commands run."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("rows", "next")):
        write(tmp_path / f"{name}.csv", make_rows(seed))
    return tmp_path


def words(source):
    return ["learn", f"{source}.csv", "--columns", "c:drop", "--checkpoint", "state"]


def load(place="state"):
    checkpoint = read_newest(place)
    return checkpoint.model, checkpoint.header["rows"]


@pytest.fixture
def check(work, call, caplog):
    return lambda change, words=words: check_change(change, words, load, call, caplog)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_keeps_the_model(name, check, work):
    change = CHANGES[name]
    changed = check(change)
    shutil.rmtree(work / "state")
    if change.is_same:
        assert changed == check(Change())


def test_predictions_are_in_both_files_after_a_change(check, work):
    check(CHANGES["another sink"])
    rows = [[int(line.partition(",")[0]) for line in (work / name).read_text().splitlines()[1:]] for name in ("a.csv", "b.csv")]
    assert rows == [list(range(FIRST)), list(range(FIRST, N))]


def test_a_sink_that_was_dropped_is_continued_later(call, work):
    call(*words("rows"), "--label", "y", "--to", "a.csv", "--max-rows", 50)
    call(*words("rows"), "--max-rows", 50)
    call(*words("rows"), "--to", "a.csv")
    rows = [int(line.partition(",")[0]) for line in (work / "a.csv").read_text().splitlines()[1:]]
    assert rows == [*range(50), *range(100, N)]


@pytest.mark.parametrize("flags", [[], ["--follow"]])
def test_metrics_of_predictions_have_the_version_of_the_model(flags, call, work, monkeypatch):
    texts, close = [], Monitor.close
    monkeypatch.setattr(Monitor, "close", lambda self: close(texts.append(self.make_response("/metrics")[2].decode()) or self))
    call(*words("rows"), "--label", "y")
    call("predict", "next.csv", "--model", "state", "--to", "out.csv", "--metrics-port", 0, *flags)
    assert f"streamsvm_model_version {N}.0\n" in texts[0]


def test_the_rows_of_a_sink_stay_if_it_is_used_again_after_another(call, work):
    bad = range(10, N, 20)
    lines = [line if i - 1 not in bad else "bad" for i, line in enumerate((work / "rows.csv").read_text().splitlines())]
    (work / "rows.csv").write_text("\n".join(lines))
    for name in ("a", "b", "a"):
        outputs = ["--to", f"{name}.csv", "--on-error", f"{name}.jsonl", "--max-rows", 100]
        call(*words("rows"), "--label", "y", *outputs)
    for i, name in zip((0, 100, 200), ("a.000001", "b", "a"), strict=True):
        texts = [(work / f"{name}.{suffix}").read_text() for suffix in ("csv", "jsonl")]
        rows = [re.findall(r'^(?:{"row": )?(\d+)', text, re.MULTILINE) for text in texts]
        assert rows[0] == [str(row) for row in range(i, i + 100) if row not in bad]
        assert rows[1] == [str(row) for row in range(i, i + 100) if row in bad]


def test_outputs_that_end_or_return_are_reported_once(call, work, caplog):
    def learn(*flags):
        caplog.clear()
        call(*words("rows"), *flags)
        return [record.getMessage() for record in caplog.records if getattr(record, "fields", {}).get("event") == "changed"]

    outputs, part = ["--to", "a.csv", "--passthrough", "a", "--on-error", "bad.jsonl"], ["--max-rows", 50]
    learn("--label", "y", *outputs, *part)
    dropped = [
        "bad.jsonl: refused rows are not written here any more",
        "state: predictions are not written from row 50 on; until then they went to a.csv",
    ]
    assert [learn(*part) for _ in range(3)] == [dropped, [], []]
    said = "a.csv: predictions are written here from row 200 on; earlier ones are in a.csv"
    assert [learn(*outputs, *part) for _ in range(2)] == [[said], []]
    learn(*outputs)
    assert [len(learn()) for _ in range(2)] == [2, 0]  # without a new row


def test_a_warm_start_with_learned_rows_is_reported(call, work, caplog):
    call("learn", "rows.csv", "--label", "y", "--checkpoint", "old", "--max-rows", 100)
    call("learn", "next.csv", "--label", "y", "--checkpoint", "other", "--max-rows", 1)
    shutil.copy(next((work / "old").glob("*.ckpt")), "file.ckpt")
    advice = {"old": "give --checkpoint old instead", "file.ckpt": "give --checkpoint with its folder instead", "other": None}
    for place, remedy in advice.items():
        for i, flags in enumerate(([], ["--from", "earliest"])):
            caplog.clear()
            call("learn", "rows.csv", "--start-from", place, "--checkpoint", f"new{place}{i}", *flags, "--max-rows", 5)
            said = f"rows.csv: {place} has learned rows of this stream, and they are learned again. To continue after"
            said += f" them, {remedy}\n"
            assert (said in caplog.text) == (remedy is not None and not flags)
            assert ("again" in caplog.text) == (said in caplog.text)


def test_files_are_renamed_added_and_archived(call, work):
    whole = work / "whole"
    call("learn", "rows.csv", "next.csv", "--label", "y", "--checkpoint", whole)
    shutil.copy("rows.csv", "day1.csv")
    call("learn", "rows.csv", "--label", "y", "--checkpoint", "state", "--max-rows", 100)
    call("learn", "day1.csv", "--checkpoint", "state", "--max-rows", 100)  # another name for the same bytes
    shutil.copy("next.csv", "day2.csv")
    call("learn", "day*.csv", "--checkpoint", "state", "--max-rows", 150)
    (work / "day1.csv").unlink()
    call("learn", "day*.csv", "--checkpoint", "state")
    assert dumps(load()[0]) == dumps(load(whole)[0])


def test_rows_are_not_learned_twice(call, work):
    call("learn", "rows.csv", "--label", "y", "--checkpoint", "state")
    for _ in range(2):
        call("learn", "rows.csv", "--checkpoint", "state", "--from", "earliest")
        assert load()[1] == N
    for expected in (2 * N, 2 * N):
        call("learn", "next.csv", "--checkpoint", "state", "--from", "earliest")
        assert load()[1] == expected
    shutil.copy("next.csv", "day2.csv")
    write(work / "day1.csv", make_rows(2))
    said = "are not those of the checkpoint: one is gone, changed or new"
    call("learn", "day*.csv", "--checkpoint", "state", "--from", "earliest", status=1, says=said)  # day2 was learned


@pytest.mark.parametrize("kind", ["folder", "file", "model"])
def test_a_warm_start_goes_on_with_the_model(kind, call, work, caplog):
    flags = ["--columns", "c:drop", "--label", "y", "--learner", "bsgd,budget=30"]
    call("learn", "rows.csv", *flags, "--checkpoint", "old")
    before = {path: path.read_bytes() for path in (work / "old").iterdir()}
    place = {"folder": "old", "file": next((work / "old").glob("*.ckpt")), "model": "model"}[kind]
    if kind == "model":
        find_learner(load("old")[0]).save(work / "model")
    table = ["--label", "y", "--columns", "c:drop"] * (kind == "model")  # a model without a table
    said = call("learn", "next.csv", *table, "--checkpoint", "new", "--start-from", place, "--max-rows", 100).stderr
    assert f"with the model of {place}" in said
    assert load("new")[1] == 100 + N * (kind != "model")
    again = ["learn", "next.csv", "--checkpoint", "new", "--start-from", place, *table]
    caplog.clear()
    done = call(*again, "--quiet")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert f"continuing after row {load('new')[1]} with the model of new\n" in call(*again).stderr
    assert {path: path.read_bytes() for path in (work / "old").iterdir()} == before
    call("learn", "rows.csv", "next.csv", *flags, "--checkpoint", "all")
    if kind == "model":
        assert done.end["learned"] == N
    else:
        assert dumps(find_learner(load("new")[0])) == dumps(find_learner(load("all")[0]))
        header, whole = read_newest("new").header, read_newest("all").header
        assert (header["metrics"], header["scores"], header["curve"]) == (whole["metrics"], whole["scores"], whole["curve"])


def test_a_warm_start_needs_a_model_that_fits(call, work):
    call("learn", "rows.csv", "--label", "y", "--checkpoint", "old")
    start = ["learn", "next.csv", "--checkpoint", "new", "--start-from"]
    call(*start, "none", status=1, says="none")
    (work / "empty").mkdir()
    call(*start, "empty", status=1, says="empty holds no checkpoint")
    said = "old/checkpoint-000000000300.ckpt holds a model with other parameters"
    call(*start, "old", "--learner", "linear", status=1, says=said)
    call(*start, "old", "--regression", status=1, says="leave it out")
    call(*start, "old", "--label", "a", status=1, says="learned the column 'a', so it cannot be the label: leave --label out")
    call("learn", "next.csv", "--label", "y", "--checkpoint", "writes", "--to", "out.csv")
    said = "--to out.csv is where the learner of this model writes, too: name another file"
    call(*start, "writes", "--to", "out.csv", status=2, says=said)
    assert not list((work / "new").glob("*.ckpt"))
    call(*start, "old", "--label", "y", "--metric", "MicroF1")
    assert json.loads(call("inspect", "new", "--json").stdout)["metrics"] == "MicroF1(window=1000)"


def test_a_warm_start_goes_on_with_the_counts_of_refused_rows(call, work):
    with (work / "rows.csv").open("a") as file:
        file.write("a row of one cell\n")
    call("learn", "rows.csv", "--label", "y", "--on-error", "skip", "--checkpoint", "old")
    done = call("learn", "next.csv", "--start-from", "old", "--quiet", "--max-rows", 10).end
    assert (done["rows"], done["learned"], done["refused"]) == (N + 11, N + 10, {"malformed": 1})


def test_metrics_change_beside_the_positive_label(call, work):
    metrics = []
    for name, first in (("model", ["--threshold", "F1"]), ("scores", ["--metric", "F1,ROCAUC"])):
        call(*words("rows"), "--label", "y", *first, "--positive", "yes", "--checkpoint", name, "--max-rows", 50)
        for changed in ("Accuracy", "F1,LogLoss"):
            call(*words("rows"), "--checkpoint", name, "--metric", changed, "--max-rows", 50)
            metrics.append(json.loads(call("inspect", name, "--json").stdout)["metrics"])
    assert metrics[:2] == metrics[2:]
    assert [text.count("positive='yes'") for text in metrics[:2]] == [0, 2]
    call(*words("rows"), "--checkpoint", "scores", "--positive", "no", "--max-rows", 50)
    assert json.loads(call("inspect", "scores", "--json").stdout)["metrics"] == metrics[1].replace("yes", "no")
    call(*words("rows"), "--checkpoint", "scores", "--metric", "Accuracy", "--max-rows", 50)
    call(*words("rows"), "--checkpoint", "scores", "--positive", "no", status=2, says="Accuracy treats all labels alike")
    said = "rows.csv: F1 counts one label as positive, and which one is not known"
    call(*words("rows"), "--checkpoint", "old", "--label", "y", "--max-rows", 50)
    call(*words("rows"), "--checkpoint", "old", "--metric", "Accuracy,F1", status=1, says=said)


def test_a_flag_is_completed_by_those_of_the_checkpoint(call, work):
    says = "--on-drift reset is about drift, and no --drift DETECTOR detects it"
    call(*words("rows"), "--label", "y", "--on-drift", "reset", status=2, says=says)
    call(*words("rows"), "--label", "y", "--threshold", "mcc", status=2, says="which label is it about? --positive LABEL")
    call(*words("rows"), "--label", "y", "--max-rows", 50)
    call(*words("rows"), "--on-drift", "reset", status=2, says=says)
    for flags, kept in (
        (["--drift", "ADWIN", "--positive", "yes"], {"drift": "ADWIN"}),
        (["--on-drift", "reset"], {"drift": "ADWIN", "on_drift": "reset"}),
        (["--drift", "KSWIN"], {"drift": "KSWIN"}),
    ):
        call(*words("rows"), *flags, "--max-rows", 20)
        assert read_newest("state").header["flags"] == {"learner": "bsgd", "positive": "yes", **kept}
    call(*words("rows"), "--threshold", "mcc", status=1, says="To continue with its model, leave --learner")
    call(*words("rows"), "--label", "y", "--threshold", "F1", "--positive", "yes", "--checkpoint", "tuned", "--max-rows", 50)
    call(*words("rows"), "--threshold", "mcc", "--checkpoint", "tuned")


def test_a_model_of_a_partition_keeps_its_flags(call, work, monkeypatch, caplog):
    rows = [({"a": row["a"], "b": row["b"]}, row["y"]) for row in make_rows(0)]

    def open_worker(_, make_loop, folder, **options):
        def run(max_rows, _):
            with CheckpointFolder(folder / "partition-0") as checkpoints:
                loop = make_loop(IterableSource(rows), checkpoints)
                loop.run(max_rows)
                worker.rows = loop.rows

        worker = SimpleNamespace(run=run, rows=0, loops={}, stop=None, close=lambda: None, state="ended")
        return worker

    monkeypatch.setattr(learn, "open_worker", open_worker)
    worker = ["learn", "kafka://broker/rows", "--label", "y", "--group", "g", "--scope", "partition", "--checkpoint", "state"]
    first = ["--learner", "bsgd,budget=30", "--scale", "none", "--metric", "F1", "--positive", "yes", "--window", 20]
    call(*worker, *first, "--max-rows", 100)
    caplog.clear()
    call(*worker)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []
    newest = read_newest("state/partition-0")
    assert (newest.header["rows"], newest.header["metrics"]) == (N, "F1(window=20, positive='yes')")
    assert find_learner(newest.model).budget == 30


def test_a_model_without_labels_continues(call, work):
    call("learn", "rows.csv", "--learner", "anomaly", "--columns", "a:drop,c:category,y:drop", "--checkpoint", "old")
    save(load("old")[0], work / "model")
    main(["learn", "next.csv", "--start-from", "model", "--checkpoint", "new"])
    assert find_learner(load("new")[0]).n_learned == 2 * N
    said = "contradicts the model, a OneClassBSGD: leave it out"
    call("learn", "next.csv", "--start-from", "old", "--checkpoint", "other", "--learner", "bsgd", status=1, says=said)


def test_settings_of_a_detector_that_are_left_out_stay(call, work):
    columns = ["--columns", "a:drop,c:category,y:drop"]
    call("learn", "rows.csv", "--learner", "anomaly,nu=.2,budget=40", *columns, "--max-rows", FIRST, "--checkpoint", "state")
    call("learn", "rows.csv", "--learner", "anomaly,budget=30", "--checkpoint", "state")
    learner = find_learner(load()[0])
    assert (learner.nu, learner.budget, learner.n_learned) == (0.2, 30, N)


@pytest.mark.parametrize(("name", "value", "status"), [("metric", 3, 0), ("bound", "4", 0), ("interval", 7.0, 1)])
def test_invalid_flags_in_a_checkpoint(name, value, status, call, work):
    call(*words("rows"), "--label", "y", "--max-rows", FIRST)
    with CheckpointFolder("other") as folder, CSVSource("rows.csv", "y", columns="c:drop") as source:
        LearningLoop(source, None, start_from="state", checkpoints=folder, flags={name: value}).run(10)
    assert main(["learn", "rows.csv", "--checkpoint", "other"]) == status


def test_an_invalid_weight_in_a_checkpoint(call, work):
    call(*words("rows"), "--label", "y", "--max-rows", FIRST)
    with CheckpointFolder("state") as folder:
        newest = folder.newest()
        facts = {name: newest.header[name] for name in newest.header if name not in ("kind", "retention")}
        folder.save(newest.model, newest.state, **{**facts, "weight": {"a": 1}})
    call("learn", "rows.csv", "--checkpoint", "state", status=1, says="was learned with the weight {'a': 1}, not None")


def test_what_a_table_depends_on_does_not_change(call, work):
    learn = ["learn", "rows.csv", "--columns", "a:drop,c:category", "--bound", 4, "--label", "y", "--checkpoint", "state"]
    call(*learn, "--max-rows", FIRST)
    said = "BoundedScaler deviations: 4.0 -> 5.0. To continue with its model, leave --learner, --scale, --bound"
    call("learn", "rows.csv", "--checkpoint", "state", "--bound", 5, status=1, says=said)
    call("learn", "next.csv", "--start-from", "state", "--label", "a", status=2, says="a is the label")


def test_options_of_delayed_labels_change(call, work, caplog):
    rows = make_rows(0)
    write(work / "features.csv", [{"id": i, "at": 10 * i, "a": row["a"], "b": row["b"]} for i, row in enumerate(rows)])
    write(work / "labels.csv", [{"id": i, "at": 10 * i + 55, "y": row["y"]} for i, row in enumerate(rows)])
    learn = ["learn", "features.csv", "--label", "y", "--learner", "bsgd,budget=30"]
    for place, options in (("changed", "&max_age=1h&max_rows=50&expired=negative=no"), ("same", "")):
        words = [*learn, "--checkpoint", place, "--labels"]
        call(*words, "labels.csv?key=id&time=at", "--max-rows", 300)
        call(*words, f"labels.csv?key=id&time=at{options}")
    assert dumps(find_learner(load("changed")[0])) == dumps(find_learner(load("same")[0]))
    said = "the checkpoint was learned with key='id', not 'at'"
    call(*words, "labels.csv?key=at&time=id", status=1, says=said)
    call("learn", "rows.csv", "--checkpoint", "same", "--columns", "c:drop", status=1, says="another kind of stream")
    caplog.clear()
    call("learn", "rows.csv", "--columns", "c:drop", "--checkpoint", "same", "--from", "earliest")
    assert "labels come with their rows from row 600 on; the rows that waited for theirs are dropped" in caplog.text
    assert find_learner(load("same")[0]).n_learned == 2 * N
    call("learn", "next.csv", "--columns", "c:drop", "--checkpoint", "warm", "--start-from", "changed")
    assert find_learner(load("warm")[0]).n_learned == 2 * N


def test_a_run_of_predictions_changes(call, work, caplog):
    call("learn", "rows.csv", "--label", "y", "--checkpoint", "state")
    predict = ["predict", "--model", "state", "--checkpoint", "position"]
    call(*predict, "rows.csv", "--to", "a.csv", "--max-rows", FIRST)
    caplog.clear()
    call(*predict, "rows.csv", "--to", "b.csv", "--passthrough", "a")
    assert f"b.csv: predictions are written here from row {FIRST} on; until then they went to a.csv" in caplog.text
    assert len((work / "b.csv").read_text().splitlines()) == 1 + N - FIRST
    call(*predict, "next.csv", "--to", "b.csv", "--passthrough", "a", status=1, says="--from earliest")
    call(*predict, "next.csv", "--to", "b.csv", "--passthrough", "a", "--from", "earliest")
    assert len((work / "b.csv").read_text().splitlines()) == 1 + 2 * N - FIRST


def test_settings_of_the_models_of_keys_that_were_left_out_stay(work, call):
    first = ["learn", "rows.csv", "--label", "y", "--learner", "bsgd,budget=30", "--columns", "c:key", "--checkpoint", "state"]
    call(*first, "--key-models", "c,max_keys=20,idle=90", "--max-rows", FIRST)
    call("learn", "rows.csv", "--checkpoint", "state", "--key-models", "c, idle=80")
    model = load()[0]["KeyedClassifier"]
    assert (model.max_keys, model.idle) == (20, 80)
