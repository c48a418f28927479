"""Changes saved models with valid checksums, loads them, and uses the loaded models: run it in a process that may crash.

``python tests/mutated_files.py N SEED`` changes N files of all learners, machines and some pipelines. A loaded model must
predict, learn, merge, save and load again, and for some be exported; or raise a ValueError with a reason, as for invalid rows.
It prints the outcomes as JSON, and fails if a file has another outcome or takes longer than 10 seconds, or if a class, module or
function of this process has changed.
"""

import copy
import json
import random
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
from river import base, compose, ensemble, feature_extraction, preprocessing, tree
from scipy import sparse
from sklearn.base import BaseEstimator

import crafted
import streamsvm
from discovered import estimators
from streamsvm.batch import BatchClassifier, CSMOClassifier, CSMOOneClass, HierarchicalSVC
from streamsvm.edge.program import ExportError
from streamsvm.export.formats import export
from streamsvm.files.container import ModelFileError
from streamsvm.learners import NOGD, RBP, Forgetron, KernelRLSClassifier, OnlineLinearSVC
from streamsvm.learners.conformal import ConformalClassifier
from streamsvm.linear import OutOfCoreLinearSVC, OutOfCoreLinearSVR

TABLE = [{"a": i % 3, "b": i / 7, "y": i % 2} for i in range(40)]
MODELS = [
    lambda: preprocessing.StandardScaler() | streamsvm.BSGDClassifier(budget=6, seed=1),
    lambda: preprocessing.StandardScaler() | streamsvm.BSCAClassifier(budget=6, seed=1),
    lambda: streamsvm.table_model(TABLE, label="y", columns="a:category", learner=streamsvm.BSGDClassifier(budget=6)),
    lambda: ConformalClassifier(streamsvm.BSGDClassifier(budget=6), window=20),
    lambda: streamsvm.BSGDClassifier(budget=6, kernel="linear", averaging=0),
    lambda: NOGD(budget=6),
    lambda: Forgetron(budget=6),
    lambda: RBP(budget=6, seed=1),
    OnlineLinearSVC,
    lambda: KernelRLSClassifier(budget=6, max_features=4),
    lambda: BatchClassifier(CSMOClassifier(), window=60, refit_every=30, calibration_folds=2),
    lambda: BatchClassifier(HierarchicalSVC(n_trees=2, leaf_size=20, rank=8), window=60, refit_every=30, calibration_folds=0),
    lambda: compose.Select("a", "b") | ensemble.BaggingClassifier(streamsvm.BSGDClassifier(budget=4), n_models=2, seed=1),
    lambda: feature_extraction.RBFSampler(seed=1) | tree.HoeffdingTreeClassifier(grace_period=20),
]
EXTREMES = [
    *(0, 1, -1, 2, 7, 255, 2**31, 2**62, 2**63, 2**64, 10**30, -(2**63), 0.5, -0.0, 1e-320, 1e308, True, False, None),
    *("", "a", "loss", [], [[]], {"float": "nan"}, {"float": "inf"}),
    *({"tuple": []}, {"tuple": [1, 2.0, "a"]}, {"ref": 0}, {"ref": 1}),
    *({"bytes": 0}, {"class": "builtins:int"}, {"function": "copy:deepcopy"}, {"scalar": ["F64", 1.0]}, {"frozenset": ["a"]}),
]
MACHINES = [
    lambda X, y: CSMOClassifier().fit(X, np.array(["no", "maybe", "yes"])[y]),
    lambda X, y: CSMOClassifier().fit(sparse.csr_array(X), np.array(["a", "b", "cde"], object)[y]),
    lambda X, y: CSMOOneClass().fit(sparse.csr_matrix(X)),
    lambda X, y: HierarchicalSVC(n_trees=2, leaf_size=20, rank=8).fit(X, y),
    lambda X, y: OutOfCoreLinearSVC().fit(X, np.array(["no", "yes", "yes"])[y]),
    lambda X, y: OutOfCoreLinearSVR().fit(X, y.astype(np.float64)),
]
_LONGEST_SECONDS = 10.0
ROWS = [{"a": i / 7 - 3.0, "b": (i * i) % 11 / 5.0} for i in range(60)]
MATRIX = np.array([[x["a"], x["b"], 0.0] for x in ROWS])


def nodes(value, at=()):
    yield at
    if isinstance(value, list | dict):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from nodes(inner, (*at, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


def changed(rng, tree, arrays):
    """Return a copy of a file's contents with one to three changes."""
    tree, arrays = copy.deepcopy(tree), dict(arrays)
    for _ in range(rng.choice((1, 1, 2, 3))):
        if rng.random() < 0.4 and any(array.size for array in arrays.values()):
            name = rng.choice([name for name, array in arrays.items() if array.size])
            data = bytearray(arrays[name].tobytes())
            place = rng.randrange(len(data)) if rng.random() < 0.5 else rng.randrange(min(len(data), 400))
            if rng.random() < 0.5:
                data[place] ^= 1 << rng.randrange(8)
            else:
                place -= place % 8
                number = rng.choice((0, 1, -1, 5, 2**31, 2**62, -(2**63), 10**6))
                data[place : place + 8] = number.to_bytes(8, "little", signed=True)[: len(data) - place]
            if rng.random() < 0.1:
                data = data[: rng.randrange(len(data))]
            kind = arrays[name].dtype
            arrays[name] = np.frombuffer(bytes(data[: len(data) // kind.itemsize * kind.itemsize]), kind)
        else:
            path = rng.choice([path for path in nodes(tree) if path])
            parent, key = at(tree, path[:-1]), path[-1]
            change = rng.randrange(5)
            if change == 0 and isinstance(parent, list):
                del parent[key]
            elif change == 1:
                parent[key] = copy.deepcopy(at(tree, rng.choice(list(nodes(tree)))))
            elif change == 2 and isinstance(parent[key], int):
                parent[key] += rng.choice((1, -1, 1000, 2**40))
            elif change == 3 and isinstance(parent, dict):
                parent[rng.choice(("ref", "tuple", "bytes", "class", "namedtuple", "method", "codec", "scalar"))] = parent.pop(
                    key
                )
            else:
                parent[key] = copy.deepcopy(rng.choice(EXTREMES))
    return tree, arrays


def state_of_process():
    """Return the contents of classes, modules and functions, which loading a file must not change."""
    ids = {}
    for name, module in list(sys.modules.items()):
        if module is None or not name.startswith(("river.", "streamsvm.", "copy", "builtins", "numpy.random", "functools")):
            continue
        for key, value in list(vars(module).items()):
            ids[name, key] = id(value)
            if isinstance(value, type) and value.__module__ == name:
                ids.update({(name, key, part): id(inner) for part, inner in vars(value).items()})
            if isinstance(value, types.FunctionType):
                ids[name, key, "defaults"] = repr(value.__defaults__)
    # Compiled code, imports and registries of abstract classes are filled on demand.
    return {key: value for key, value in ids.items() if not str(key[-1]).startswith(("_abc", "__warningregistry__", "_cache"))}


#: Messages of allowed errors: for a row, for another model, or for an export.
SAID = (ValueError, ModelFileError, ExportError)

#: Allowed errors of river's models, whose state is not validated.
INSIDE = ("/river/",)


def use(model, folder, exports):
    """Use all methods of a model; return the outcome, and the place of an error that is not allowed (None otherwise)."""
    if isinstance(model, compose.Pipeline) and not model.steps:  # river can create empty pipelines, which have no methods to call
        return "of river", None
    ways = [lambda: predict(model, [0, 3]), lambda: learn(model), lambda: predict(model, range(12))]
    ways += [lambda: merge(model), lambda: streamsvm.save(model, folder / "again"), lambda: streamsvm.load(folder / "again")]
    ways += [lambda form=form: export(model, form, folder) for form in ("json", "c") if exports]
    fate = "used"
    for way in ways:
        try:
            way()
        except SAID:
            fate = "said"
        except Exception as error:  # noqa: BLE001
            last = traceback.extract_tb(error.__traceback__)[-1]
            if any(part in last.filename for part in INSIDE):
                return "of river", None
            return f"{type(error).__name__}", f"{type(model).__name__}: {error!r:.100} at {last.filename}:{last.lineno}"
    return fate, None


def predict(model, rows):
    if isinstance(model, BaseEstimator):
        model.predict(MATRIX)
        model.predict(sparse.csr_array(MATRIX))
        return
    for i in rows:
        if isinstance(model, base.AnomalyDetector):
            model.score_one(ROWS[i])
            continue
        last = [*model.steps.values()][-1] if isinstance(model, compose.Pipeline) else model
        if not hasattr(last, "predict_one"):  # a transformer in place of a model
            model.transform_one(ROWS[i])
            continue
        model.predict_one(ROWS[i])
        if hasattr(model, "predict_proba_one"):
            model.predict_proba_one(ROWS[i])
    if hasattr(model, "predict_many") and not isinstance(
        model, compose.Pipeline
    ):  # pipelines have the method even if their steps lack it
        model.predict_many(pd.DataFrame(ROWS[:5]))


def learn(model):
    if not isinstance(model, BaseEstimator):
        for i, x in enumerate(ROWS[:12]):
            learn_one(model, i, x)


def learn_one(model, i, x):
    if isinstance(model, base.AnomalyDetector) or not hasattr(model, "predict_one"):
        model.learn_one(x)
    else:
        model.learn_one(x, x["a"] if isinstance(model, base.Regressor) else i % 3 == 0)


def merge(model):
    if hasattr(model, "merge_with"):
        model.merge_with(copy.deepcopy(model))


def main():
    n, seed = map(int, sys.argv[1:])
    rng = random.Random(seed)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    folder = Path(tempfile.mkdtemp())
    path, contents = folder / "model", []
    models = [make() for make in MODELS] + [kind(**next(iter(kind._unit_test_params()))) for kind in estimators()]
    for model in models:
        for i, x in enumerate(ROWS):
            learn_one(model, i, x)
        predict(model, range(3))
    models += [fit(MATRIX, np.arange(len(MATRIX)) % 3) for fit in MACHINES]
    for model in models:
        streamsvm.save(model, path)
        contents.append(crafted.taken_apart(path))
        assert use(streamsvm.load(path), folder, True)[1] is None, model  # imports all modules before the state is compared
    before, fates, bad = state_of_process(), Counter(), Counter()
    for number in range(n):
        tree, arrays = changed(rng, *rng.choice(contents))
        crafted.repacked(path, json.dumps(tree).encode(), arrays)
        began = time.process_time()
        try:
            model = streamsvm.load(path)
        except ModelFileError:
            fates["refused"] += 1
        else:
            fate, where = use(model, folder, number % 10 == 0)
            fates[fate] += 1
            if where is not None:
                bad[where] += 1
        if time.process_time() - began > _LONGEST_SECONDS:
            bad[f"{time.process_time() - began:.0f} seconds, number {number}"] += 1
    after = state_of_process()
    changes = [".".join(map(str, key)) for key, value in before.items() if after.get(key) != value]
    print(json.dumps({"fates": fates, "bad": dict(bad.most_common(40)), "changes": changes}))  # noqa: T201
    sys.exit(bool(changes or bad))


if __name__ == "__main__":
    main()
