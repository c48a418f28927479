"""Finds which compiled functions each public estimator calls, and writes them to streamsvm/core/compiling/entries.json.

    python release/entries.py             # writes
    python release/entries.py --check     # uses all, but for the golden digests, and fails where numba is imported

An entry is a function that Python calls, or that compiled code calls by address, with the types of its arguments. Wheels have
their machine code (`machine_code.py`), and `streamsvm compile` compiles them. Run this when an estimator calls a function that it
did not call before: the tests of wheels then say that something is compiled.
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
#: Whatever estimators share, used as the tests of golden digests do.
GOLDEN = "golden"
#: After the name of a learner of the command line: with a target instead of a label.
REGRESSION = "regression"
#: What reads topics, LIBSVM text and tables.
SOURCES = "sources"
#: Estimators of others.
WRAPPERS = "BatchClassifier", "BatchRegressor", "batch_adapter"
#: Learners that nothing brings back to their budget.
UNBOUNDED = "KernelOGD", "KernelPegasos", "KernelPerceptron"
#: The processor that wheels are for; its machine code is kept, and `machine_code.py` finds it.
PROCESSOR = {"x86_64": "x86-64-v3"}.get(platform.machine(), "generic")
ENVIRONMENT = {
    **os.environ,
    "NUMBA_CPU_NAME": PROCESSOR,
    "NUMBA_CPU_FEATURES": "",
    "STREAMSVM_MACHINE_CODE": "0",
    "STREAMSVM_COMPILE_PROCESSES": "1",  # each core has an estimator already
}


def estimators() -> list[str]:
    """Return the names of the public estimators."""
    names = []
    for part in ("learners", "batch", "linear"):
        module = importlib.import_module(f"streamsvm.{part}")
        kinds = {name: getattr(module, name) for name in module.__all__}
        names += [
            name
            for name, kind in kinds.items()
            if isinstance(kind, type) and hasattr(kind, "learn_one" if part == "learners" else "fit")
        ]
    return [name for name in names if name not in WRAPPERS]


def use(name: str) -> None:
    """Use an estimator as people do."""
    from streamsvm import batch, learners, linear

    kind = next(getattr(part, name) for part in (learners, batch, linear) if hasattr(part, name))
    if hasattr(kind, "learn_one"):
        _use_learner(kind)
    else:
        _use_solver(kind)


def _rows(classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(700, 5)).astype(np.float32)
    number = X[:, 0] * X[:, 1] + X[:, 2]
    return X, np.digitize(number, np.quantile(number, np.arange(1, classes) / classes)) if classes else number


def _use_learner(kind: Any) -> None:
    from river import base

    import streamsvm

    valid = kind()._get_params()
    kernels = [{}, {"kernel": "linear"}, {"kernel": "poly", "coef0": 1.0}] if "kernel" in valid else [{}]
    scalings = [{}, {"scaling": None}] if "scaling" in valid else [{}]
    classes = [0] if issubclass(kind, base.Regressor) else [2, 3] if "max_classes" in valid else [2]
    budget = {} if "budget" not in valid else {"budget": 5000 if kind.__name__ in UNBOUNDED else 20}
    for kernel, scaling, k in itertools.product(kernels, scalings, classes):
        parameters = {**kernel, **scaling, **budget, **({"max_classes": 3} if k > 2 else {})}
        X, y = _rows(k)
        if issubclass(kind, base.AnomalyDetector):
            model = kind(**parameters)
            for x in X:
                x = dict(zip("abcde", map(float, x), strict=True))
                model.score_one(x), model.learn_one(x)
            model.learn_many(X)
            continue
        model, whole = kind(**parameters), kind(**parameters)
        for x, target in zip(X, y, strict=True):
            x, target = dict(zip("abcde", map(float, x), strict=True)), target.item()
            model.predict_one(x)
            if hasattr(model, "predict_proba_one"):
                model.predict_proba_one(x)
            model.learn_one(x, target)
        whole.learn_many(X, y.tolist())
        if hasattr(whole, "predict_then_learn"):
            whole.predict_then_learn(X, whole.feature_names, y.tolist(), bool(k))
        for ask in ("predict_many", "predict_proba_many", "decision_function_many"):
            if hasattr(whole, ask):
                getattr(whole, ask)(X)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model")
            streamsvm.save(model, path)
            streamsvm.load(path).learn_many(X, y.tolist())
        if hasattr(model, "learn_epochs") and k:
            kind(**parameters).learn_epochs(X, y.tolist(), epochs=2).learn(1)


def _use_solver(kind: Any) -> None:
    from scipy import sparse
    from sklearn.base import is_classifier

    valid = kind().get_params()
    kernels: list[dict[str, Any]] = [{}]
    if "kernel" in valid:  # a narrow RBF kernel, too: its values come from differences of rows
        kernels = [{}, {"gamma": 1e15}, *({"kernel": name} for name in ("linear", "poly", "sigmoid"))]
    for kernel, (classes, dtype) in itertools.product(kernels, [(2, np.float32), (3, np.float64)]):
        X, y = _rows(classes if is_classifier(kind()) else 0)
        rare = np.tile(np.where(X > 1.5, X, 0.0), 8)  # which stays sparse
        few = np.eye(60, dtype=dtype), sparse.eye_array(60, 5000, dtype=dtype, format="csr")
        cases = [(kernel, rows) for rows in (X.astype(dtype), sparse.csr_matrix(rare.astype(dtype)), *few)]
        for parameters, rows in (*cases, ({"kernel": "precomputed"}, X @ X.T)):
            try:
                model = kind(**parameters).fit(rows, y[: rows.shape[0]])
            except (ValueError, TypeError) as error:
                if not re.search(r"sparse|kernel|binary", str(error)):  # what a solver does not take
                    raise
                continue
            model.predict(rows)
            if hasattr(model, "decision_function"):
                model.decision_function(rows)
    if kind.__name__ == "CSMORegressor":  # large targets need steps in float64
        X, y = _rows(0)
        kind(C=1e6).fit(X, 1e6 * y)


def use_golden() -> None:
    """Use what the golden digests are of."""
    sys.path.insert(0, str(ROOT / "tests"))
    golden = importlib.import_module("golden")
    for cases in (golden.learner_cases, golden.batch_cases, golden.linear_cases):
        for _, case in cases():
            try:
                case()
            except (ValueError, TypeError, AttributeError):
                continue


def use_command_line(learner: str, regression: bool) -> None:
    """Learn and predict a file."""
    from streamsvm.cli.main import main

    with tempfile.TemporaryDirectory() as folder:
        rng, path = np.random.default_rng(0), Path(folder, "rows.csv")
        X = rng.normal(size=(3000, 2))
        y = X[:, 0] * X[:, 1] if regression else np.where(X[:, 0] * X[:, 1] > 0, "yes", "no")
        path.write_text("a,b,y\n" + "".join(f"{a},{b},{label}\n" for (a, b), label in zip(X, y, strict=True)))
        words = [*(["--regression"] if regression else []), "--learner", learner, "--quiet"]
        main(["learn", str(path), "--label", "y", "--checkpoint", f"{folder}/state", "--to", f"{folder}/out.jsonl", *words])
        main(["predict", str(path), "--label", "y", "--model", f"{folder}/state", "--to", f"{folder}/new.jsonl", "--quiet"])


def use_sources() -> None:
    """Find the fields of a record and the numbers in JSON, as the source of a topic does; read LIBSVM text; encode a table."""
    from streamsvm.core.records import find_fields
    from streamsvm.stream import LIBSVMSource
    from streamsvm.stream.json_objects import JSONObjects
    from streamsvm.stream.tables import TableEncoder
    from streamsvm.stream.tables.chunk import Table, concatenate_rows

    found = JSONObjects("y", json.loads).parse_table(*concatenate_rows([b'{"a": 1.5, "y": 0}']), ["a"])
    assert found is not None
    assert found.y == [0]
    assert find_fields(np.frombuffer(b"\x0c" + bytes(6), np.uint8), 0, np.empty((1, 7), np.int64)) == 6
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.libsvm")
        path.write_text("1 1:0.5\n0 1:1.5\n")
        chunk = LIBSVMSource(path).read(2)
        assert chunk is not None
        assert chunk.table([1]) is not None
    encoder = TableEncoder("b:category")
    table = Table(("a", "b"), [np.ones(400), [f"name {i}" for i in range(400)]])
    for i in range(20):
        encoder.learn_one(table.row(i).x, i % 2)
    # More names than the first table of statistics has.
    encoder.encode_batch(table, 0, 400, np.ones(400, bool), None, [0, 1] * 200).update_encoder()
    encoder.transform_one(table.row(0).x)
    assert encoder.column_state.count_unknown_names("b", ["name 1", "nobody"]) == 1


def uses() -> list[str]:
    """Return what wheels have machine code of, by the names that `compile_ahead` knows."""
    from streamsvm.cli.parsing import LEARNERS

    return [*estimators(), *LEARNERS, *(f"{learner} {REGRESSION}" for learner in LEARNERS), SOURCES]


def entries() -> dict[str, list[str]]:
    """Return the entries that this process has called."""
    from streamsvm.core.compiling.numba_functions import CompiledFunction
    from streamsvm.core.compiling.signatures import format_type

    found: dict[str, list[str]] = {}
    for function in gc.get_objects():
        if isinstance(function, CompiledFunction):
            place = f"{function.py_func.__module__}:{function.py_func.__qualname__}"
            for arguments in sorted(function._entries, key=str):
                result = function.overloads[arguments].signature.return_type
                found.setdefault(place, []).append(f"{' '.join(map(format_type, arguments))} -> {format_type(result)}")
    return {place: sorted(set(signatures)) for place, signatures in sorted(found.items())}


def use_any(name: str) -> None:
    """Use an estimator, a learner of the command line, what reads rows, or what the golden digests are of."""
    from streamsvm.cli.parsing import LEARNERS

    first, *regression = name.split()
    if first == GOLDEN:
        use_golden()
    elif first == SOURCES:
        use_sources()
    elif first in LEARNERS:
        use_command_line(first, bool(regression))
    else:
        use(first)


def check_calls() -> None:
    """Call functions with machine code as Python may call any: copies of them, methods, and errors that they raise."""
    from streamsvm.batch.hss.compositional import CompositionalMatrix
    from streamsvm.batch.tree_descent import compute_upward_sums
    from streamsvm.core.kernels import exp2d

    assert copy.deepcopy([exp2d])[0] is pickle.loads(pickle.dumps(exp2d)) is exp2d  # noqa: S301
    assert type("Holder", (), {"of": exp2d})().of.__func__ is exp2d
    one, nothing, no_keywords = np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.float32), {}
    matrix = CompositionalMatrix(one, one, one, one, nothing, one, nothing, np.zeros(0), one)
    said = ""
    try:
        compute_upward_sums(one, one + 2, one - 1, matrix, np.zeros(2), np.zeros(2), np.zeros(1), **no_keywords)
    except ValueError as error:
        said = str(error)
    assert said == "total size of new array must be unchanged", said


def check(names: list[str]) -> None:
    """Use what is named, where machine code was shipped; fail where that does not suffice."""
    from streamsvm.core.compiling.machine_code import describe_status, is_available

    assert is_available(), describe_status()
    sys.modules["numba"] = None  # type: ignore[assignment] # so that to import it is an error
    check_calls()
    for name in names:
        began = time.process_time()
        use_any(name)
        print(f"{name}: {time.process_time() - began:.1f} CPU s", flush=True)
    print(f"{describe_status()}; nothing was compiled for {len(names)} uses")


def record(name: str) -> dict[str, list[str]]:
    """Return the entries that an estimator calls, in a process of its own."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, __file__, name], check=False, stdout=subprocess.PIPE, env=ENVIRONMENT)
    print(f"{name}: {time.perf_counter() - began:.0f} s", "" if done.returncode == 0 else "FAILED", flush=True)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}


def main() -> None:
    """Write the entries of all estimators, or print those of one."""
    if sys.argv[1:] == ["--check"]:
        check(uses())
        return
    if len(sys.argv) > 1:
        use_any(sys.argv[1])
        print(json.dumps(entries()))
        return
    names = [*uses(), GOLDEN]
    if not TARGET.exists():  # the command line asks it what to compile before it learns
        TARGET.write_text(json.dumps({"entries": {}, "components": {name: {} for name in names}}))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(names, pool.map(record, names), strict=True))
    if failed := [name for name, of_one in found.items() if not of_one]:
        sys.exit(f"nothing written: {', '.join(failed)} failed")
    places: dict[str, set[str]] = {}
    for of_one in found.values():
        for place, signatures in of_one.items():
            places.setdefault(place, set()).update(signatures)
    table = {place: sorted(signatures) for place, signatures in sorted(places.items())}
    used = {name: found[name] for name in names if name != GOLDEN}
    TARGET.write_text(json.dumps({"entries": table, "components": used}, indent=1) + "\n")
    print(len(table), "functions,", sum(map(len, table.values())), "entries of", len(used), "uses")


if __name__ == "__main__":
    main()
