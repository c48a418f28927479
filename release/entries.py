"""Finds which compiled functions each public estimator calls, and writes them to streamsvm/core/compiling/entries.json.

    python release/entries.py             # writes the file
    python release/entries.py --check     # uses all components except the golden digests, and fails if numba is imported

An entry is a function that Python calls, or that compiled code calls by address, with its argument types. Wheels have their
machine code (`machine_code.py`), and `streamsvm compile` compiles them. Run this when an estimator calls a function that it did
not call before; otherwise, the tests of wheels report that something is compiled.
"""

from __future__ import annotations

import copy
import gc
import importlib
import itertools
import json
import os
import pickle
import platform
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "streamsvm" / "core" / "compiling" / "entries.json"
#: Functions that several estimators share, found by running the cases of the golden digests.
GOLDEN = "golden"
#: Suffix of the name of a learner of the command line: with a numeric target in place of a label.
REGRESSION = "regression"
#: The component that reads topics, LIBSVM text and tables.
SOURCES = "sources"
#: The component that learns small models of keys.
KEYS = "KeyModels"
#: Wrappers of other estimators, which have no functions of their own.
WRAPPERS = "BatchClassifier", "BatchRegressor", "batch_adapter"
#: Learners without budget maintenance.
UNBOUNDED = "KernelOGD", "KernelPegasos", "KernelPerceptron"
#: The processor type that wheels are built for; `machine_code.py` uses the functions compiled for it here.
PROCESSOR = {"x86_64": "x86-64-v3"}.get(platform.machine(), "generic")
ENVIRONMENT = {
    **os.environ,
    "NUMBA_CPU_NAME": PROCESSOR,
    "NUMBA_CPU_FEATURES": "",
    "STREAMSVM_MACHINE_CODE": "0",
    "STREAMSVM_COMPILE_PROCESSES": "1",  # estimators run in parallel already
}


def list_estimators() -> list[str]:
    """Return the names of the public estimators."""
    names = []
    for package in ("learners", "batch", "linear"):
        module = importlib.import_module(f"streamsvm.{package}")
        classes = {name: getattr(module, name) for name in module.__all__}
        names += [
            name
            for name, estimator_class in classes.items()
            if isinstance(estimator_class, type) and hasattr(estimator_class, "learn_one" if package == "learners" else "fit")
        ]
    return [name for name in names if name not in WRAPPERS]


def use_estimator(name: str) -> None:
    """Use an estimator with all kernels, scalings and kinds of targets that it supports."""
    from streamsvm import batch, learners, linear

    estimator_class = next(getattr(package, name) for package in (learners, batch, linear) if hasattr(package, name))
    if hasattr(estimator_class, "learn_one"):
        _use_learner(estimator_class)
    else:
        _use_solver(estimator_class)


def _make_rows(classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return 700 rows and targets: class indices below ``classes``, or numbers if it is 0."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(700, 5)).astype(np.float32)
    number = X[:, 0] * X[:, 1] + X[:, 2]
    return X, np.digitize(number, np.quantile(number, np.arange(1, classes) / classes)) if classes else number


def _use_learner(learner_class: Any) -> None:
    """Use a learner row by row and in batches, save and load it, and learn in epochs."""
    from river import base

    import streamsvm

    valid = learner_class()._get_params()
    kernels = [{}, {"kernel": "linear"}, {"kernel": "poly", "coef0": 1.0}] if "kernel" in valid else [{}]
    scalings = [{}, {"scaling": None}] if "scaling" in valid else [{}]
    class_counts = [0] if issubclass(learner_class, base.Regressor) else [2, 3] if "max_classes" in valid else [2]
    budget = {} if "budget" not in valid else {"budget": 5000 if learner_class.__name__ in UNBOUNDED else 20}
    for kernel, scaling, n_classes in itertools.product(kernels, scalings, class_counts):
        parameters = {**kernel, **scaling, **budget, **({"max_classes": 3} if n_classes > 2 else {})}
        X, y = _make_rows(n_classes)
        if issubclass(learner_class, base.AnomalyDetector):
            model = learner_class(**parameters)
            for x in X:
                x = dict(zip("abcde", map(float, x), strict=True))
                model.score_one(x), model.learn_one(x)
            model.learn_many(X)
            continue
        model, batch_model = learner_class(**parameters), learner_class(**parameters)
        for x, target in zip(X, y, strict=True):
            x, target = dict(zip("abcde", map(float, x), strict=True)), target.item()
            model.predict_one(x)
            if hasattr(model, "predict_proba_one"):
                model.predict_proba_one(x)
            model.learn_one(x, target)
        batch_model.learn_many(X, y.tolist())
        if hasattr(batch_model, "predict_then_learn"):
            batch_model.predict_then_learn(X, batch_model.feature_names, y.tolist(), bool(n_classes))
        for method in ("predict_many", "predict_proba_many", "decision_function_many"):
            if hasattr(batch_model, method):
                getattr(batch_model, method)(X)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model")
            streamsvm.save(model, path)
            streamsvm.load(path).learn_many(X, y.tolist())
        if hasattr(model, "maintenance"):
            model.mutate({"budget": 10})  # merges or removes support vectors
        if hasattr(model, "learn_epochs") and n_classes:
            learner_class(**parameters).learn_epochs(X, y.tolist(), epochs=2).learn(1)


def _use_solver(solver_class: Any) -> None:
    """Fit a batch solver to dense and sparse rows of both float types, and predict."""
    from scipy import sparse
    from sklearn.base import is_classifier

    valid = solver_class().get_params()
    kernels: list[dict[str, Any]] = [{}]
    if "kernel" in valid:  # a narrow RBF kernel, too: its values are computed from differences of rows
        kernels = [{}, {"gamma": 1e15}, *({"kernel": name} for name in ("linear", "poly", "sigmoid"))]
    for kernel, (classes, dtype) in itertools.product(kernels, [(2, np.float32), (3, np.float64)]):
        X, y = _make_rows(classes if is_classifier(solver_class()) else 0)
        sparse_rows = np.tile(np.where(X > 1.5, X, 0.0), 8)  # sparse enough to stay sparse
        unit_rows = np.eye(60, dtype=dtype), sparse.eye_array(60, 5000, dtype=dtype, format="csr")
        cases = [(kernel, rows) for rows in (X.astype(dtype), sparse.csr_matrix(sparse_rows.astype(dtype)), *unit_rows)]
        for parameters, rows in (*cases, ({"kernel": "precomputed"}, X @ X.T)):
            try:
                model = solver_class(**parameters).fit(rows, y[: rows.shape[0]])
            except (ValueError, TypeError) as error:
                if not re.search(r"sparse|kernel|binary", str(error)):  # a combination that the solver does not support
                    raise
                continue
            model.predict(rows)
            if hasattr(model, "decision_function"):
                model.decision_function(rows)
    if solver_class.__name__ == "CSMORegressor":  # large targets need steps in float64
        X, y = _make_rows(0)
        solver_class(C=1e6).fit(X, 1e6 * y)


def use_golden() -> None:
    """Run the cases of the golden digests."""
    sys.path.insert(0, str(ROOT / "tests"))
    golden = importlib.import_module("golden")
    for cases in (golden.learner_cases, golden.batch_cases, golden.linear_cases):
        for _, case in cases():
            try:
                case()
            except (ValueError, TypeError, AttributeError):
                continue


def use_command_line(learner: str, regression: bool) -> None:
    """Learn and predict a file by the command line."""
    from streamsvm.cli.main import main

    with tempfile.TemporaryDirectory() as folder:
        rng, path = np.random.default_rng(0), Path(folder, "rows.csv")
        X = rng.normal(size=(3000, 2))
        y = X[:, 0] * X[:, 1] if regression else np.where(X[:, 0] * X[:, 1] > 0, "yes", "no")
        path.write_text("a,b,y\n" + "".join(f"{a},{b},{label}\n" for (a, b), label in zip(X, y, strict=True)))
        options = [*(["--regression"] if regression else []), "--learner", learner, "--quiet"]
        main(["learn", str(path), "--label", "y", "--checkpoint", f"{folder}/state", "--to", f"{folder}/out.jsonl", *options])
        main(["predict", str(path), "--label", "y", "--model", f"{folder}/state", "--to", f"{folder}/new.jsonl", "--quiet"])


def use_sources() -> None:
    """Read records and JSON as the source of a topic does, read LIBSVM text, and encode a table."""
    from streamsvm.core.records import find_fields
    from streamsvm.stream import LIBSVMSource
    from streamsvm.stream.json_objects import JSONObjects
    from streamsvm.stream.tables import TableEncoder
    from streamsvm.stream.tables.chunk import Table, concatenate_rows

    rows = JSONObjects("y", json.loads).parse_table(*concatenate_rows([b'{"a": 1.5, "y": 0}']), ["a"])
    assert rows is not None
    assert rows.y == [0]
    assert find_fields(np.frombuffer(b"\x0c" + bytes(6), np.uint8), 0, np.empty((1, 7), np.int64)) == 6
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.libsvm")
        path.write_text("1 1:0.5\n0 1:1.5\n")
        chunk = LIBSVMSource(path).read(2)
        assert chunk is not None
        assert chunk.table([1]) is not None
    encoder = TableEncoder("b:category,c:text")
    table = Table(("a", "b", "c"), [np.ones(400), [f"name {i}" for i in range(400)], ["a text"] * 400])
    for i in range(20):
        encoder.learn_one(table.row(i).x, i % 2)
    # More category names than the initial table of statistics holds.
    encoder.parse_table(table).encode_batch(0, 400, np.ones(400, bool), None, [0, 1] * 200).update_encoder()
    encoder.transform_one(table.row(0).x)
    texts = encoder.column_state.texts["c"]
    texts.compute_scores(encoder.target_encoding)
    texts.__setstate__(texts.__getstate__())
    TableEncoder("c:text").learn_one({"c": "a text"}, 0.5)
    assert encoder.column_state.find_unknown_names("b", ["name 1", "nobody"]) == {"nobody": 1}


def use_keys() -> None:
    """Learn the rows of several keys by small models of each key, and save and load them."""
    from streamsvm.learners.keyed_models import KeyModels

    for classes in (2, 3, 0):
        models = KeyModels("key", classes == 0, 10, None)
        X, y = _make_rows(classes)
        for i, (x, target) in enumerate(zip(X, y, strict=True)):
            models.process_row({"key": i % 3, **dict(zip("abcde", map(float, x), strict=True))}, target.item(), 1.0)
        KeyModels("key", classes == 0, 10, None).restore_state(models.get_state())


def list_components() -> list[str]:
    """Return the names of the components that wheels have machine code for, as `compile_ahead` accepts them."""
    from streamsvm.cli.parsing import LEARNERS

    return [*list_estimators(), *LEARNERS, *(f"{learner} {REGRESSION}" for learner in LEARNERS), SOURCES, KEYS]


def format_type(numba_type: Any) -> str:
    """Convert a numba type to text, such as ``"f8"`` for a float64 or ``"u1:1"`` for a byte array. Raises TypeError for types
    that have no such text.
    """
    from numba import types

    from streamsvm.core.compiling.signatures import NO_RESULT

    numba_type = types.unliteral(numba_type)
    if isinstance(numba_type, types.NoneType):
        return NO_RESULT
    if isinstance(numba_type, types.Boolean):
        return "b1"
    if isinstance(numba_type, types.Integer | types.Float):
        return np.dtype(numba_type.name).str[1:]
    if (
        isinstance(numba_type, types.Array)
        and numba_type.layout == "C"
        and isinstance(numba_type.dtype, types.Integer | types.Float | types.Boolean)
    ):
        return f"{format_type(numba_type.dtype)}:{numba_type.ndim}{'' if numba_type.mutable else 'r'}"
    if isinstance(numba_type, types.BaseTuple):
        tuple_class = getattr(numba_type, "instance_class", None)
        path = f"{tuple_class.__module__}:{tuple_class.__qualname__}" if tuple_class not in {None, tuple} else ""
        return f"{path}({' '.join(map(format_type, numba_type.types))})"
    raise TypeError(f"{numba_type} cannot be written in a signature")


def collect_entries() -> dict[str, list[str]]:
    """Return the functions that this process has called, by import path, with their signatures."""
    from streamsvm.core.compiling.numba_functions import CompiledFunction

    signatures: dict[str, list[str]] = {}
    for function in gc.get_objects():
        if isinstance(function, CompiledFunction):
            path = f"{function.py_func.__module__}:{function.py_func.__qualname__}"
            for arguments in sorted(function._entries, key=str):
                result = function.overloads[arguments].signature.return_type
                signatures.setdefault(path, []).append(f"{' '.join(map(format_type, arguments))} -> {format_type(result)}")
    return {path: sorted(set(of_path)) for path, of_path in sorted(signatures.items())}


def use_component(name: str) -> None:
    """Use a component: an estimator, a learner of the command line, the sources, or the cases of the golden digests."""
    from streamsvm.cli.parsing import LEARNERS

    kind, *regression = name.split()
    if kind == GOLDEN:
        use_golden()
    elif kind == SOURCES:
        use_sources()
    elif kind == KEYS:
        use_keys()
    elif kind in LEARNERS:
        use_command_line(kind, bool(regression))
    else:
        use_estimator(kind)


def check_calls() -> None:
    """Check that precompiled functions behave as Python functions: copies, methods, and raised errors."""
    from streamsvm.batch.hss.compositional import CompositionalMatrix
    from streamsvm.batch.tree_descent import compute_upward_sums
    from streamsvm.core.kernels import exp2d

    assert copy.deepcopy([exp2d])[0] is pickle.loads(pickle.dumps(exp2d)) is exp2d  # noqa: S301
    assert type("Holder", (), {"of": exp2d})().of.__func__ is exp2d
    ones, empty, no_keywords = np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.float32), {}
    matrix = CompositionalMatrix(ones, ones, ones, ones, empty, ones, empty, np.zeros(0), ones)
    message = ""
    try:
        compute_upward_sums(ones, ones + 2, ones - 1, matrix, np.zeros(2), np.zeros(2), np.zeros(1), **no_keywords)
    except ValueError as error:
        message = str(error)
    assert message == "total size of new array must be unchanged", message


def check_components(names: list[str]) -> None:
    """Use components with precompiled machine code, and fail if that does not suffice."""
    from streamsvm.core.compiling.machine_code import describe_status, is_available

    assert is_available(), describe_status()
    sys.modules["numba"] = None  # type: ignore[assignment] # importing it is an error then
    check_calls()
    for name in names:
        start = time.process_time()
        use_component(name)
        print(f"{name}: {time.process_time() - start:.1f} CPU s", flush=True)
    print(f"{describe_status()}; nothing was compiled for {len(names)} components")


def record_entries(name: str) -> dict[str, list[str]]:
    """Return the entries that a component calls, found in a new process."""
    start = time.perf_counter()
    completed = subprocess.run([sys.executable, __file__, name], check=False, stdout=subprocess.PIPE, env=ENVIRONMENT)
    print(f"{name}: {time.perf_counter() - start:.0f} s", "" if completed.returncode == 0 else "FAILED", flush=True)
    return json.loads(completed.stdout.splitlines()[-1]) if completed.returncode == 0 else {}


def main() -> None:
    """Write the entries of all components, or print those of one."""
    if sys.argv[1:] == ["--check"]:
        check_components(list_components())
        return
    if len(sys.argv) > 1:
        use_component(sys.argv[1])
        print(json.dumps(collect_entries()))
        return
    names = [*list_components(), GOLDEN]
    if not TARGET.exists():  # the command line reads it before it learns
        TARGET.write_text(json.dumps({"entries": {}, "components": {name: {} for name in names}}))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        entries = dict(zip(names, pool.map(record_entries, names), strict=True))
    if failed := [name for name, component_entries in entries.items() if not component_entries]:
        sys.exit(f"nothing written: {', '.join(failed)} failed")
    signatures_by_path: dict[str, set[str]] = {}
    for component_entries in entries.values():
        for path, signatures in component_entries.items():
            signatures_by_path.setdefault(path, set()).update(signatures)
    table = {path: sorted(signatures) for path, signatures in sorted(signatures_by_path.items())}
    components = {name: entries[name] for name in names if name != GOLDEN}
    TARGET.write_text(json.dumps({"entries": table, "components": components}, indent=1) + "\n")
    print(len(table), "functions,", sum(map(len, table.values())), "entries of", len(components), "components")


if __name__ == "__main__":
    main()
