"""Writes small models of several kinds to files, with their predictions, and checks that a reader predicts the same.

``NUMBA_DISABLE_JIT=1 python tests/saved_models.py golden`` writes the golden files of the present version of the format, without
compiling: models with programs into ``tests/edge/golden``, and models of every class and checkpoints of runs into
``tests/files/golden``. With names of models after ``golden``, it writes only these. Once a version is released, its files stay as
they are. ``python tests/saved_models.py write FOLDER`` writes the models with programs alone, and ``python tests/saved_models.py
check FOLDER`` reads them by numpy alone.
"""

import contextlib
import gzip
import inspect
import io
import json
import math
import shutil
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parent

ROWS = [{name: math.sin(1.3 * i + 7.1 * place) for place, name in enumerate("abc")} for i in range(60)]
ROWS[7].pop("b")
TABLE = [{**x, "city": ("Oslo", "Rom", "Bern", "")[i % 4]} for i, x in enumerate(ROWS)]
WORDS = ("free", "prize", "call"), ("Home", "see you", "später", "明天见")
TEXTS = [{**x, "message": " ".join(WORDS[x["a"] + x["c"] > 0.3][: i % 5])} for i, x in enumerate(TABLE)]


def models():
    """Yield trained models with their names and the rows that each has learned."""
    from river import preprocessing

    from streamsvm import BSCARegressor, BSGDClassifier, KernelRLSRegressor, OneClassBSGD, SVMClassifier, SVMRegressor
    from streamsvm.learners import OnlineLinearSVC
    from streamsvm.stream.tables import TableEncoder

    small = {"budget": 6, "max_features": 4, "seed": 0}
    two = [x["a"] + x["c"] > 0.3 for x in ROWS]
    three = ["low" if x["a"] < -0.4 else "high" if x["a"] > 0.4 else "middle" for x in ROWS]
    number = [3.0 + x["a"] * x["c"] for x in ROWS]
    yield "two labels", BSGDClassifier(**small), ROWS, two
    yield "three labels", BSGDClassifier(**small), ROWS, three
    yield "linear", OnlineLinearSVC(max_features=4), ROWS, two
    yield "number", BSCARegressor(**small), ROWS, number
    yield "landmarks", KernelRLSRegressor(budget=6, max_features=4), ROWS, number
    yield "anomaly", OneClassBSGD(**small), ROWS, None
    yield "pipeline", preprocessing.StandardScaler() | BSGDClassifier(**small, scaling=None), ROWS, two
    yield "table", TableEncoder("city:category") | BSGDClassifier(**{**small, "max_features": 8}), TABLE, two
    yield "texts", TableEncoder("city:category,message:text") | BSGDClassifier(**{**small, "max_features": 50}), TEXTS, three
    yield "ensemble", SVMClassifier(max_features=4, seed=0), ROWS, three
    yield "ensemble of numbers", SVMRegressor(max_features=4, seed=0), ROWS, number


def machines():
    """Yield fitted machines with their names and rows."""
    import numpy as np

    from streamsvm.batch import CSMOClassifier, CSMOOneClass, HierarchicalSVR
    from streamsvm.linear import OutOfCoreLinearSVC

    X = np.array([[x.get(name, 0.0) for name in "abc"] for x in ROWS])
    y = np.array(["low", "middle", "high"])[(X[:, 0] > -0.4).astype(int) + (X[:, 0] > 0.4)]
    yield "machine of three labels", CSMOClassifier(C=10.0).fit(X, y)
    yield "machine of one class", CSMOOneClass(nu=0.2).fit(X)
    yield "machine with trees", HierarchicalSVR(n_trees=2, leaf_size=20, rank=8, random_state=0).fit(X, X[:, 0] * X[:, 2])
    yield "linear machine", OutOfCoreLinearSVC().fit(X, y == "high")


def write(folder, largest=None, names=()):
    """Write models, or those with these names, and their predictions; only the program of a model whose file exceeds ``largest``
    bytes.
    """
    import streamsvm
    from streamsvm.export.formats import export

    folder.mkdir(parents=True, exist_ok=True)
    expected = json.loads((folder / "expected.json").read_text()) if names else {}

    def put(name, model, answers):
        path = folder / f"{name.replace(' ', '-')}.safetensors"
        streamsvm.save(model, path)
        if largest is not None and path.stat().st_size > largest:
            path.unlink()
            [path] = export(model, "numpy", folder, path.stem)
        expected[path.name] = answers

    for name, model, rows, targets in models():
        if names and name not in names:
            continue
        for i, x in enumerate(rows):
            model.learn_one(x) if targets is None else model.learn_one(x, targets[i])
        ask = model.score_one if targets is None else model.predict_one
        put(name, model, [ask(x) for x in rows])
    try:
        fitted = [] if names else list(machines())
    except ImportError:  # scikit-learn is an extra
        fitted = []
    for name, model in fitted:
        put(name, model, model.predict([[x.get(column, 0.0) for column in "abc"] for x in ROWS]).tolist())
    (folder / "expected.json").write_text(
        "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in expected.items()) + "\n}\n"
    )


def row_of(predictor, i):
    """Return row i for a predictor; the names of its columns may be integers."""
    if predictor.columns == [0, 1, 2]:
        return dict(enumerate(ROWS[i].get(name, 0.0) for name in "abc"))
    return TEXTS[i]  # it has the columns of the others, and fields that they ignore


def check(folder):
    """Check that all files predict as expected, and return their names. AssertionError if one does not."""
    from streamsvm import edge

    expected = json.loads((folder / "expected.json").read_text())
    for name, answers in expected.items():
        predictor = edge.load(folder / name)
        predictions = [predictor.predict_one(row_of(predictor, i)) for i in range(len(ROWS))]
        if predictor.kind == "class":
            assert predictions == answers, name
        else:
            assert all(math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-5) for a, b in zip(predictions, answers, strict=True)), name
    return list(expected)


# Golden files of every class ------------------------------------------------------------------------------------------------

TWO = [x["a"] + x["c"] > 0.3 for x in ROWS]
NUMBERS = [3.0 + x["a"] * x["c"] for x in ROWS]
#: Rows that a model learns before it is saved. It predicts all rows, and learns the others after it is loaded.
N_LEARNED = 45


def golden_models():
    """Yield a trained model of every class that a file can contain, with the name of its file."""
    from river import compose, linear_model, multiclass, preprocessing

    from streamsvm import BSCARegressor, BSGDClassifier, Merge, Projection, Removal, learners, table_model
    from streamsvm.batch import BatchClassifier, BatchRegressor, CSMOClassifier, CSMORegressor
    from streamsvm.learners import OnlineLinearSVC
    from streamsvm.learners.conformal import ConformalClassifier, ConformalRegressor
    from streamsvm.learners.costs import CostSensitiveClassifier
    from streamsvm.learners.keyed import KeyedClassifier, KeyedRegressor
    from streamsvm.learners.preprocessing import BoundedScaler, BoundedTargetScaler
    from streamsvm.learners.thresholds import TunedThresholdClassifier
    from streamsvm.stream.tables import TableEncoder

    small = {"budget": 6, "max_features": 4, "seed": 0, "max_classes": 4, "effort": "low", "averaging": 20}

    def made(kind, **parameters):
        accepted = inspect.signature(kind).parameters
        return kind(**{name: value for name, value in small.items() if name in accepted} | parameters)

    growing = {"KernelOGD", "KernelPegasos", "KernelPerceptron"}  # they stop learning when the budget is full
    for name in learners.__all__:
        yield name, made(getattr(learners, name), **({"budget": len(ROWS)} if name in growing else {}))
    for strategy in (Merge(), Projection(), Removal("random")):
        yield f"BSGDClassifier-{type(strategy).__name__}", made(BSGDClassifier, maintenance=strategy)
    linear = OnlineLinearSVC(max_features=4)
    yield "ConformalClassifier", ConformalClassifier(linear, window=20)
    yield "ConformalRegressor", ConformalRegressor(made(BSCARegressor), window=20)
    yield "KeyedClassifier", KeyedClassifier(OnlineLinearSVC(max_features=8), "b", max_keys=10)
    yield "KeyedRegressor", KeyedRegressor(made(BSCARegressor, max_features=8), "b", max_keys=10)
    yield "CostSensitiveClassifier", CostSensitiveClassifier(linear, {True: 3.0, False: 1.0})
    yield "TunedThresholdClassifier", TunedThresholdClassifier(linear, horizon=100)
    yield "BoundedScaler", BoundedScaler() | made(BSGDClassifier, scaling=None)
    yield "BoundedTargetScaler", BoundedTargetScaler(made(BSCARegressor))
    yield "pipeline", (compose.Select("a", "c") + preprocessing.StandardScaler()) | linear.clone()
    yield "one-against-rest", multiclass.OneVsRestClassifier(linear.clone())
    yield "river", preprocessing.StandardScaler() | linear_model.LogisticRegression()
    yield (
        "table-of-names",
        TableEncoder("city:category,when:date", cycles="day", buckets=8, max_values=2) | made(BSGDClassifier, max_features=16),
    )
    without_names = TableEncoder("city:drop,when:drop", when_missing="indicator", scaler="standard")
    yield "table-scaled", without_names | made(BSGDClassifier, max_features=16)
    yield "table-of-texts", TableEncoder("city:drop,message:text") | made(BSGDClassifier, max_features=20)
    rows = [{**x, "label": y} for x, y in zip(table_rows(), TWO, strict=True)]
    yield "table-model", table_model(rows, "label", learner=made(BSGDClassifier, max_features=16))
    # Machines are not refitted after loading: on another processor, a fit would end at another point within its tolerance.
    batch = {"window": 30, "refit_every": 40, "max_features": 4}
    yield "BatchClassifier", BatchClassifier(CSMOClassifier(), calibration_folds=2, **batch)
    yield "BatchRegressor", BatchRegressor(CSMORegressor(), **batch)


def table_rows():
    """Return the rows with a category and a date."""
    return [{**x, "when": f"2026-03-{1 + i % 28:02d}T{i % 24:02d}:30"} for i, x in enumerate(TABLE)]


def golden_machines():
    """Yield a fitted machine of every class, with the name of its file; classifiers have two and three labels."""
    from streamsvm.batch import (
        CSMOClassifier,
        CSMOOneClass,
        CSMORegressor,
        HierarchicalSVC,
        HierarchicalSVR,
        HSSADMMClassifier,
    )
    from streamsvm.linear import OutOfCoreLinearSVC, OutOfCoreLinearSVR

    X = numeric_rows()
    trees = {"n_trees": 2, "leaf_size": 20, "rank": 8}
    classifiers = CSMOClassifier(C=10.0), HierarchicalSVC(**trees), HSSADMMClassifier(leaf_size=16), OutOfCoreLinearSVC()
    for model in classifiers:
        yield type(model).__name__, model.fit(X, TWO)
    yield "CSMOClassifier-probability", CSMOClassifier(probability=True, random_state=0).fit(X, TWO)
    yield "CSMOClassifier-three", CSMOClassifier().fit(X, [label_of(x) for x in ROWS])
    for model in (CSMORegressor(), HierarchicalSVR(**trees), OutOfCoreLinearSVR()):
        yield type(model).__name__, model.fit(X, NUMBERS)
    yield "CSMOOneClass", CSMOOneClass(nu=0.2).fit(X)


def label_of(x):
    """Return the label of a row for three classes."""
    return "low" if x["a"] < -0.4 else "high" if x["a"] > 0.4 else "middle"


def numeric_rows():
    """Return the rows as lists of floats."""
    return [[x.get(name, 0.0) for name in "abc"] for x in ROWS]


def is_machine(model):
    """Return whether a model is a batch machine, which is fitted to lists of floats."""
    return hasattr(model, "fit") and not hasattr(model, "learn_one")


def rows_for(model):
    """Return the rows for a model, and their targets; None for models without targets."""
    from river import base

    encoder = getattr(model, "steps", {}).get("TableEncoder")
    rows = ROWS if encoder is None else TEXTS if "message" in encoder.columns else table_rows()
    last = model[-1] if hasattr(model, "steps") else model
    if isinstance(last, base.AnomalyDetector):
        return rows, None
    return rows, NUMBERS if isinstance(last, base.Regressor) else TWO


def learn(model, first, stop):
    """Let a model learn the rows from ``first`` up to ``stop``."""
    rows, targets = rows_for(model)
    for i in range(first, stop):
        model.learn_one(rows[i]) if targets is None else model.learn_one(rows[i], targets[i])


def answers_of(model):
    """Return the predictions of a model for every third row, as floats."""
    import numpy as np

    if is_machine(model):
        decide = getattr(model, "decision_function", model.predict)
        return np.asarray(decide(numeric_rows()[::3]), float).tolist()
    rows, targets = rows_for(model)
    if targets is None:
        answer = model.score_one
    elif targets is NUMBERS:
        answer = model.predict_one
    elif hasattr(model, "decision_function_one"):
        answer = model.decision_function_one
    else:
        answer = lambda x: model.predict_proba_one(x).get(True, 0.0)  # noqa: E731
    return [float(answer(x)) for x in rows[::3]]


#: Arguments of ``streamsvm`` for runs that are interrupted after a checkpoint, in a folder with their rows.
RUNS = {
    "table": "learn rows.csv --label y --learner bsgd,budget=6 --columns city:category --metric Accuracy,ROCAUC --positive yes "
    "--window 20 --drift ADWIN --weight weight --to state/predictions.jsonl --on-error state/refused.jsonl",
    "numbers": "learn rows.csv --label c --regression --learner bsca,budget=6 --columns y:drop,city:category --metric MAE,R2 "
    "--drift PageHinkley",
    "files": "learn part-1.csv part-2.csv --label y --learner bsgd,budget=6 --columns city:category --metric BrierScore",
    "delayed": "learn rows.jsonl --labels labels.jsonl?key=id&time=t&max_age=20 --label y --learner bsgd,budget=6 "
    "--metric Accuracy,LogLoss",
}


def write_rows_of_runs(folder):
    """Write the rows of the runs into a folder."""
    cells = [[x["city"], *(x.get(name, "") for name in "abc"), 1 + i % 3, ("no", "yes")[TWO[i]]] for i, x in enumerate(TABLE)]
    lines = ["city,a,b,c,weight,y", *(",".join(map(str, row)) for row in cells)]
    for file, part in (("rows", lines), ("part-1", lines[:31]), ("part-2", [lines[0], *lines[31:]])):
        (folder / f"{file}.csv").write_text("".join(f"{line}\n" for line in part))
    rows = [{"id": i, "t": float(i), **x} for i, x in enumerate(ROWS)]
    labels = [{"id": i, "t": i + 1.5 + (i * 7) % 12, "y": TWO[i]} for i in range(len(ROWS)) if i % 10]
    labels.sort(key=lambda label: label["t"])
    for name, records in (("rows", rows), ("labels", labels)):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))


def run(name, folder, *more):
    """Call a run in a folder with its rows, with checkpoints and predictions in ``state``; return the last line of its output."""
    from streamsvm.cli.main import main

    Path(folder, "state").mkdir(exist_ok=True)
    output = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(output):
        status = main([*RUNS[name].split(), "--checkpoint", "state/checkpoints", "--quiet", *more])
    assert status == 0, name
    last_event = json.loads(output.getvalue().splitlines()[-1])
    return {key: last_event[key] for key in ("rows", "learned", "drifts", "n_support", "delayed") if key in last_event} | {
        "scores": {score["name"]: [score["value"], score["windowed"]] for score in last_event["scores"]}
    }


def write_golden(folder, names=()):
    """Write models of all classes with their predictions, and checkpoints of runs with the last output of the complete runs; or
    only the models with these names.
    """
    import streamsvm

    (folder / "models").mkdir(parents=True, exist_ok=True)
    expected = json.loads((folder / "expected.json").read_text()) if names else {}

    def put(name, model):
        with tempfile.TemporaryDirectory() as place:
            path = Path(place, "model.safetensors")
            streamsvm.save(model, path)
            (folder / "models" / f"{name}.safetensors.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        expected[name] = {"saved": answers_of(model)}

    for name, model in golden_models():
        if names and name not in names:
            continue
        learn(model, 0, N_LEARNED)
        put(name, model)
        learn(model, N_LEARNED, len(ROWS))
        expected[name]["learned"] = answers_of(model)
    for name, model in () if names else golden_machines():
        put(name, model)
    for name in () if names else RUNS:
        with tempfile.TemporaryDirectory() as place:
            write_rows_of_runs(Path(place))
            run(name, place, "--max-rows", str(N_LEARNED))
            _, *older = sorted(Path(place, "state").rglob("*.ckpt"), reverse=True)
            for file in (*older, Path(place, "state", "checkpoints", ".lock")):
                file.unlink()
            shutil.copytree(Path(place, "state"), folder / "runs" / name)
            expected[f"run {name}"] = run(name, place)
    lines = (f"{json.dumps(name)}: {json.dumps(rounded(answers))}" for name, answers in expected.items())
    (folder / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def rounded(value):
    """Round floats to the digits that are compared."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def renew_golden(names):
    """Rewrite the golden files of the current version of the format, or only those of the models with these names."""
    from streamsvm.files.container import VERSION

    for part, write_files in (
        ("edge", lambda place: write(place, 2**14, names)),
        ("files", lambda place: write_golden(place, names)),
    ):
        place = TESTS / part / "golden" / f"version-{VERSION}"
        if not names:
            shutil.rmtree(place, ignore_errors=True)
        write_files(place)


if __name__ == "__main__":
    if sys.argv[1] == "golden":
        renew_golden(sys.argv[2:])
    else:
        if sys.argv[1] == "write":
            write(Path(sys.argv[2]), largest=2**14)
        print(f"{len(check(Path(sys.argv[2])))} files answer as expected")  # noqa: T201
