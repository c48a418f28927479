"""Learns small random tables through each door, and compares the models.

``python tests/doors.py N SEED`` tries N tables. Each is written in several formats, and learned by ``streamsvm learn``,
`table_model`, `LearningLoop` and `TableClassifier`. The learners must have equal bytes, and predict the CSV file alike, or a
warning or an error must name a column or the file. It prints the numbers of tables and of outcomes as JSON, and fails if a door
makes another model silently, or raises another error. A third word prints each difference.
"""

import contextlib
import copy
import io
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import traceback
import warnings
from collections import Counter
from pathlib import Path

import random_tables
from saved import dumps
from streamsvm import load, save, table_model
from streamsvm.batch.tables import TableClassifier, TableRegressor
from streamsvm.cli import main as command_line
from streamsvm.core.frames import to_list
from streamsvm.stream import LearningLoop, StreamError
from streamsvm.stream.open import open_source
from streamsvm.stream.rows import find_learner

LEARNER = "bsgd,budget=20"
REASONS = (ValueError, StreamError)
SILENT = ("silent", "no message")  # outcomes that are faults


class Result:
    """The result of a door, with its messages; ``reason`` is the message that explains a difference, or None."""

    def __init__(self, value, messages, table, path=""):
        self.value, self.messages = value, messages
        words = {*table.names, *([str(path), Path(path).name] if path else []), "the data", "the frame"}
        self.reason = next((message for message in messages if any(word in message for word in words)), None)


def call(*words, stdin=None):
    """Call the command line; returns its status, standard output, and the messages among the lines of standard error."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(stdout))
        stack.enter_context(contextlib.redirect_stderr(stderr))
        stack.enter_context(warnings.catch_warnings(action="always"))
        if stdin is not None:
            stack.enter_context(piped(stdin))
        try:
            status = command_line.main([*map(str, words)])
        except SystemExit as left:
            status = left.code
    lines = stderr.getvalue().splitlines()
    return status, stdout.getvalue(), [line for line in lines if line.startswith(("streamsvm", "column"))]


@contextlib.contextmanager
def piped(data):
    """Context manager: standard input is a pipe with the bytes ``data``."""
    read_end, write_end = os.pipe()

    def write():
        with contextlib.suppress(BrokenPipeError), os.fdopen(write_end, "wb") as file:
            file.write(data)

    thread = threading.Thread(target=write)
    thread.start()
    before = sys.stdin
    try:
        with os.fdopen(read_end, "rb") as sys.stdin:
            yield
    finally:
        sys.stdin = before
        thread.join()


class Trial:
    """A table, written in several formats, and the models that doors make from it."""

    def __init__(self, table, folder, rng, formats, doors):
        self.table, self.folder, self.outcomes = table, folder, []
        self.rng, self.label = rng, "y"
        paths = {"csv": random_tables.write_plain_csv(table, folder, rng)}
        for name in formats:
            with contextlib.suppress(UnicodeEncodeError):
                paths[name] = random_tables.FILES[name](table, folder, rng)
        self.paths, self.doors = paths, doors

    def learn(self, name, path, stdin=None, *more):
        """Learn by the command line; returns the model."""
        where = self.folder / f"model {name}"
        words = ["learn", path, "--label", self.label, "--learner", LEARNER, "--checkpoint", where, *more]
        words += ["--regression"] * self.table.regression
        status, _, messages = call(*words, stdin=stdin)
        return Result(load(where) if status == 0 else None, messages, self.table, path)

    def learn_in_python(self, kind, data, learner):
        """Learn by classes; returns the model."""
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            model, messages = None, []
            try:
                model = getattr(self, f"_learn_{kind}")(data, learner.clone())
            except REASONS as error:
                messages.append(str(error))
        return Result(
            model, [*(str(warning.message) for warning in warned), *messages], self.table, data if isinstance(data, Path) else ""
        )

    def _make_model(self, data, learner):
        return table_model(
            str(data) if isinstance(data, Path) else data, self.label, learner=learner, regression=self.table.regression
        )

    def _learn_many(self, data, learner):
        model = self._make_model(data, learner)
        model.learn_many(data)
        return model

    def _learn_one(self, data, learner):
        model = self._make_model(data, learner)
        for row in data:
            x = dict(row)
            y = x.pop(self.label, None)
            if (parsed := model.parse_labels([y])[0]) is not None:
                model.learn_one(x, parsed)
        return model

    def _learn_loop(self, data, learner):
        model = self._make_model(data, learner)
        options = model.schema.source_options
        if "csv" not in data.name and "tsv" not in data.name:
            options.pop("delimiter", None)
        with open_source(data, label=self.label, **options) as source:
            LearningLoop(source, model).run()
        return model

    def _learn_estimator(self, data, learner):
        y = data[self.label]
        kind = TableRegressor if self.table.regression else TableClassifier
        return kind(learner, shuffle=False).fit(data.drop(columns=self.label), y).model_

    def predict(self, path, where, stdin=None):
        """Return the predictions of a model for a file."""
        to = self.folder / "predictions.jsonl"
        to.unlink(missing_ok=True)
        status, _, messages = call("predict", path, "--model", where, "--to", to, stdin=stdin)
        lines = map(json.loads, to.read_text().splitlines()) if status == 0 else ()
        values = [(line["y_pred"], line.get("probability")) for line in lines] if status == 0 else None
        return Result(values, messages, self.table, path)

    def add_model(self, door, result, is_typed, where=None):
        """Compare a model with the expected one, also by its predictions for the CSV file; ``where`` is its checkpoint."""
        self.add(door, result, self.expected[is_typed], self.reference, model_bytes)
        if result.value is None or (where is None and not hasattr(result.value, "schema")):
            return
        if where is None:
            save(result.value, where := self.folder / "saved model")
        predicted = self.predict(self.paths["csv"], where)
        predicted.reason = predicted.reason or result.reason
        self.add(f"csv after {door}", predicted, self.predicted[is_typed].value, self.predicted[is_typed])

    def add(self, door, result, expected, reference, value=lambda model: model):
        """Compare a result with the expected one."""
        same = result.value is not None and value(result.value) == expected
        reason = result.reason or reference.reason
        outcome = "equal" if same else "refused" if result.value is None and result.reason else "reason" if reason else "silent"
        if result.value is None and not result.messages:
            outcome = "no message"
        if outcome == "silent":
            reason = describe(reference.value), describe(result.value)
        self.outcomes.append((door, outcome, reason))

    def run(self):
        csv = self.paths["csv"]
        reference = self.reference = self.learn("csv", csv)
        if reference.value is None:
            self.outcomes.append(("csv", "refused" if reference.reason else "no message", reference.messages))
            return
        where = self.folder / "model csv"
        # A boolean is the number 0 or 1, and the text "true" is a category.
        has_booleans = "bool" in self.table.kinds[:-1]
        rows = random_tables.write_jsonl(self.table, self.folder, self.rng) if has_booleans else csv
        typed = self.learn("typed", rows) if has_booleans else reference
        if typed.value is None:
            self.outcomes.append(("learn typed", "refused" if typed.reason else "no message", typed.messages))
            return
        models = {False: reference.value, True: typed.value}
        self.expected = {is_typed: model_bytes(model) for is_typed, model in models.items()}
        self.predicted = {False: self.predict(csv, where)}
        self.predicted[True] = self.predict(csv, self.folder / "model typed") if has_booleans else self.predicted[False]
        explained = call("explain", csv, "--model", where, "--json")[1]
        scored = call("score", csv, "--model", where, "--json")[1]
        for name, path in list(self.paths.items())[1:]:
            self.add_model(f"learn {name}", self.learn(name, path), is_typed(name), self.folder / f"model {name}")
            self.add(f"predict {name}", self.predict(path, where), self.predicted[False].value, self.predicted[False])
            door, words, answer = self.rng.choice([("explain", ["--json"], explained), ("score", ["--json"], scored)])
            status, output, messages = call(door, path, "--model", where, *words)
            answered = without_name(output) if status == 0 else None
            messages += [f"{path}: {answered['left_out']}"] if answered and answered.get("left_out") else []
            self.add(f"{door} {name}", Result(answered, messages, self.table, path), without_name(answer), reference)
        for door in self.doors:
            self.try_door(door, {is_typed: last_step(model) for is_typed, model in models.items()})
        if random_tables.are_plain_numbers(self.table):
            path = random_tables.write_libsvm(self.table, self.folder, self.rng)
            model = self.learn("libsvm", path, None, "--scale", "standard")
            predicted = self.predict(path, self.folder / "model libsvm") if model.value is not None else model
            self.add("libsvm", predicted, self.predicted[False].value, self.predicted[False])
        self.write_report(where)

    def try_door(self, door, learners):
        """Learn the table through a pipe, or in Python by copies of the ``learners``: of text formats, and of typed ones."""
        if door == "pipe":
            model = self.learn("pipe", "-", self.paths["csv"].read_bytes(), "--format", "csv")
            self.add_model("learn pipe", model, is_typed=False, where=self.folder / "model pipe")
        elif door == "loop":
            for name, path in self.paths.items():
                model = self.learn_in_python("loop", path, learners[is_typed(name)])
                self.add_model(f"loop {name}", model, is_typed(name))
        elif door == "estimator":
            if None not in self.table.columns[-1].values:
                frame = random_tables.pandas_frame(self.table)
                self.add_model("estimator", self.learn_in_python("estimator", frame, learners[True]), is_typed=True)
        else:
            data = random_tables.FRAMES[door](self.table)
            kind = "one" if isinstance(data, list) else "many"
            self.add_model(f"{kind} {door}", self.learn_in_python(kind, data, learners[is_typed(door)]), is_typed(door))
            if kind == "many" and type(self.reference.value).__name__ == "TableModel":
                expected = self.predicted[False]
                labels = expected.value and [label for label, _ in expected.value]
                self.add(f"predict {door}", self.predict_frame(self.reference.value, data), labels, expected)

    def predict_frame(self, model, data):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            values, messages = None, []
            try:
                values = to_list(model.predict_many(data))
            except REASONS as error:
                messages.append(str(error))
        return Result(values, [*(str(warning.message) for warning in warned), *messages], self.table)

    def write_report(self, where):
        path = self.rng.choice(list(self.paths.values()))
        status, _, messages = call("report", where, path, "--to", self.folder / "report.html")
        self.outcomes.append(("report", "equal" if status == 0 else "refused" if messages else "no message", messages))
        status, _, messages = call("export", where, "--to", "json", "--out", self.folder / "program.json")
        self.outcomes.append(("export", "equal" if status == 0 else "refused" if messages else "no message", messages))


def describe(value):
    """Return what differs between models, as text."""
    if not hasattr(value, "predict_one"):
        return str(value)[:300]
    learner = find_learner(value)
    options = (
        {n: getattr(value["TableEncoder"], n) for n in ("columns", "missing", "decimal", "when_missing", "cycles")}
        if hasattr(value, "steps") and "TableEncoder" in value.steps
        else None
    )
    return f"{type(value).__name__} {options} {learner.feature_names} {getattr(learner, 'labels', '')} {learner.n_learned}"


def model_bytes(model):
    """Return the bytes of the learner of a model. Some formats have no order of columns, which a model notes for its exports."""
    learner = copy.deepcopy(last_step(model))
    find_learner(learner)._features.order = None
    return dumps(learner)


def last_step(model):
    """Return the learner of a model, with its scaler of targets."""
    return list(model.steps.values())[-1] if hasattr(model, "steps") else model


def is_typed(name):
    """Return whether a format has types for booleans."""
    return name not in ("csv", "dialect", "parts") and "text" not in name


def without_name(text):
    """Return a JSON object without the name of the file."""
    return (
        {key: value for key, value in json.loads(text).items() if key not in ("source", "rows_per_second", "seconds")}
        if text
        else None
    )


def try_table(seed, folder, n_formats=3, n_doors=3):
    """Try the table of a seed; returns the trial, and the traceback of an unexpected error, or an empty text."""
    rng = random.Random(seed)
    table = random_tables.make_table(rng)
    formats = rng.sample(list(random_tables.FILES)[1:], n_formats)
    doors = rng.sample(["pipe", "loop", "estimator", *random_tables.FRAMES], n_doors)
    place = folder / str(seed)
    place.mkdir()
    trial, problem = None, ""
    try:
        trial = Trial(table, place, rng, formats, doors)
        trial.run()
    except Exception:  # noqa: BLE001
        problem = traceback.format_exc()
    shutil.rmtree(place)
    return table, trial, problem


def main():
    n, seed = map(int, sys.argv[1:3])
    folder = Path(tempfile.mkdtemp())
    tables, counts, bad = Counter(), Counter(), []
    for number in range(seed, seed + n):
        table, trial, problem = try_table(number, folder)
        outcomes = [outcome for _, outcome, _ in trial.outcomes] if trial else []
        counts.update(outcomes)
        if problem:
            bad.append({"seed": number, "problem": problem.splitlines()[-3:]})
        bad += [{"seed": number, "door": door, "outcome": outcome} for door, outcome, _ in trial.outcomes if outcome in SILENT]
        is_different = problem or not {*outcomes}.isdisjoint(SILENT)
        tables["different" if is_different else "equal" if {*outcomes} == {"equal"} else "with a reason"] += 1
        for door, outcome, reason in trial.outcomes if len(sys.argv) > 3 else ():
            if outcome != "equal":
                print(number, table.kinds, table.order, door, outcome, reason, file=sys.stderr)  # noqa: T201
    shutil.rmtree(folder)
    print(json.dumps({"tables": tables, "outcomes": counts, "bad": bad[:40]}, indent=1))  # noqa: T201
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
