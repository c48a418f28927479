"""Computes digests of the state and predictions of every estimator, to check that a refactoring changes no byte.

    python tests/golden.py write golden.json      # before the change
    python tests/golden.py compare golden.json    # after it

The compiler reorders sums for the processor, so digests are valid on one kind of machine only, and are not committed.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from river import base, datasets, preprocessing

from streamsvm import BSCAClassifier, BSCARegressor, BSGDClassifier, Merge, Projection, Removal, learners
from streamsvm.batch import CSMOClassifier, CSMORegressor, HSSADMMClassifier, batch_adapter, to_budget
from streamsvm.batch.hss import HSSMatrix
from streamsvm.linear import OutOfCoreLinearSVC, OutOfCoreLinearSVR, write_blocks, write_rows

ROWS = 700


def digest(*parts: Any) -> str:
    """Return the SHA-256 of arrays, bytes and plain values."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray) and part.dtype != object:
            total.update(f"{part.dtype.str}{part.shape}".encode())
            part = np.ascontiguousarray(part).tobytes()
        total.update(part if isinstance(part, bytes) else repr(part).encode())
    return total.hexdigest()[:16]


def scaled(dataset: Any) -> list[tuple[dict[Any, float], Any]]:
    """Return the first rows of a stream, standardised online."""
    scaler, rows = preprocessing.StandardScaler(), []
    for x, y in dataset.take(ROWS):
        scaler.learn_one(x)
        rows.append((scaler.transform_one(x), y))
    return rows


STREAMS = {
    "two": scaled(datasets.Bananas()),
    "wide": scaled(datasets.Phishing()),
    "many": scaled(datasets.ImageSegments()),
    "numbers": [(x, (y - 40.0) / 5.0) for x, y in scaled(datasets.TrumpApproval())],
}


def matrix(stream: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a stream as arrays X and y."""
    rows = STREAMS[stream]
    return np.array([list(x.values()) for x, _ in rows]), np.array([y for _, y in rows])


def learned(model: Any, stream: str, method: str) -> str:
    """Return a digest of the state and predictions of a learner after a stream."""
    rows = STREAMS[stream]
    if method == "one":
        for i, (x, y) in enumerate(rows):
            x = {**x, "late": 0.25} if i > 400 else x
            weight = {} if isinstance(model, base.AnomalyDetector) else {"w": 1.0 + (i % 3)}
            model.learn_one(x, **weight) if isinstance(model, base.AnomalyDetector) else model.learn_one(x, y, **weight)
    else:
        X, y = matrix(stream)
        model.learn_many(X) if isinstance(model, base.AnomalyDetector) else model.learn_many(X, y.tolist())
    return known(model, stream)


HEADER = ("n_support", "used", "n_outputs", "next_stamp", "kernel", "degree", "gamma", "coef0", "largest_norm")
ARRAYS = [
    *("norms", "stamps", "weights", "coefficients", "biases", "vectors", "means", "gram"),
    *("window", "window_targets", "window_weights", "window_stamps", "location", "spread", "moments"),
    *("products", "corrections", "factor", "regressors"),
]
COMMON = [
    *("t", "n_merges", "loss", "random", "gamma_rows", "deviation", "epsilon", "scale", "average_v", "average_u"),
    *("horizon", "error", "center", "size", "slope", "curvature"),
]


def memory(model: Any) -> str:
    """Return a digest of the arrays in a learner's memory by their names, independent of their addresses."""
    views, common, own = model._store.views, model._common[0], model._rule_record[0]
    header = views.header[0]
    numbers = [str(header[name]) for name in HEADER if name in header.dtype.names] + [str(common[name]) for name in COMMON]
    numbers += sorted(str(value) for value in own.tolist()) if own.dtype.names else []
    arrays = {name: getattr(views, name) for name in ARRAYS if hasattr(views, name)}
    outputs = {"products", "corrections", "weights"} if "products" in arrays else {"coefficients", "biases"} & arrays.keys()
    if "n_outputs" in header.dtype.names:
        arrays |= {name: arrays[name][: header["n_outputs"]] for name in outputs}
    return digest(numbers, *map(np.ascontiguousarray, arrays.values()))


def known(model: Any, stream: str) -> str:
    """Return a digest of the state and predictions of a learner."""
    state, rows = model.__getstate__(), STREAMS[stream][:100]
    said: list[Any] = []
    for x, _ in rows:
        said.append(model.score_one(x) if hasattr(model, "score_one") else model.predict_one(x))
        if hasattr(model, "predict_proba_one"):
            said += [sorted(model.predict_proba_one(x).items(), key=repr), model.decision_function_one(x)]
    return digest(memory(model), state["features"], state.get("labels"), said)


def learner_cases() -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield a name and a function for every online learner, with the parameters of river's checks and some more."""
    for name in learners.__all__:
        kind = getattr(learners, name)
        for number, parameters in enumerate([{}, *kind._unit_test_params()]):
            if "seed" in kind()._get_params():
                parameters = {"seed": 3, **parameters}
            if issubclass(kind, base.Regressor):
                streams = ["numbers"]
            elif issubclass(kind, base.AnomalyDetector):
                streams = ["two"]
            else:
                streams = ["two", "wide"] + (["many"] if kind(**parameters).max_classes > 2 else [])
            for stream in streams:
                for method in ("one", "many"):
                    yield (
                        f"{name} {number} {stream} {method}",
                        lambda k=kind, p=parameters, s=stream, h=method: learned(k(**p), s, h),
                    )
    searches = ("gss", "gss-precise", "lookup-h", "lookup-wd")
    strategies = [*map(Merge, searches), Removal(), Removal("random"), Projection()]
    for kind in (BSGDClassifier, BSCAClassifier):
        for strategy in strategies:
            for stream in ("two", "many"):
                if stream == "many" and isinstance(strategy, Merge) and strategy != Merge():
                    continue  # decision values differ for several outputs
                yield (
                    f"{kind.__name__} {strategy} {stream}",
                    lambda k=kind, m=strategy, s=stream: learned(k(budget=15, maintenance=m, seed=5), s, "many"),
                )
        for kernel in ("linear", "poly"):
            yield (
                f"{kind.__name__} {kernel}",
                lambda k=kind, n=kernel: learned(k(budget=10, kernel=n, coef0=1.0, seed=5), "wide", "many"),
            )
        for overflow in ("hash", "ignore"):
            yield (
                f"{kind.__name__} {overflow}",
                lambda k=kind, o=overflow: learned(k(budget=10, max_features=4, overflow=o, seed=5), "wide", "one"),
            )

    def passes(model: Any, stream: str) -> str:
        X, y = matrix(stream)
        solution = model.learn_epochs(X, y.tolist(), epochs=3)
        solution.learn(1)
        return digest(known(model, stream), solution.coefficients, solution.primal(), solution.dual())

    yield "epochs two", lambda: passes(BSCAClassifier(budget=20, seed=1), "two")
    yield "epochs many", lambda: passes(BSCAClassifier(budget=20, seed=1, relaxation=1.0), "many")
    yield "epochs numbers", lambda: passes(BSCARegressor(budget=20, seed=1), "numbers")


def fitted(model: Any, X: Any) -> str:
    """Return a digest of the state and predictions of a batch machine."""
    names = sorted(name for name in vars(model) if name.endswith("_") and name != "support_vectors_")
    said = [getattr(model, name) for name in names if isinstance(getattr(model, name), int | float | np.ndarray)]
    said.append(model.decision_function(X) if hasattr(model, "decision_function") else model.predict(X))
    return digest(names, *said)


def batch_cases() -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield a name and a function for batch machines, learners distilled from them, and the adapter."""
    for stream in ("two", "wide", "many"):
        X, y = matrix(stream)
        for parameters in (
            {},
            {"C": 10.0, "gamma": 0.5},
            {"kernel": "poly", "degree": 2, "coef0": 1.0},
            {"class_weight": "balanced"},
        ):
            yield f"CSMOClassifier {stream} {parameters}", lambda X=X, y=y, p=parameters: fitted(CSMOClassifier(**p).fit(X, y), X)
        yield f"HSSADMMClassifier {stream}", lambda X=X, y=y: fitted(HSSADMMClassifier(gamma=0.5, random_state=0).fit(X, y), X)
        for learner in ("bsca", "bsgd"):
            yield (
                f"to_budget {stream} {learner}",
                lambda X=X, y=y, s=stream, n=learner: known(
                    to_budget(
                        CSMOClassifier().fit(X, y), 20, X, learner=n, passes=3, feature_names=list(STREAMS[s][0][0]), seed=1
                    ),
                    s,
                ),
            )
        yield f"adapter {stream}", lambda s=stream: adapted(CSMOClassifier(), s)
        yield (f"HSSMatrix {stream}", lambda X=X: hss(HSSMatrix.compress(X, gamma=0.5, leaf_size=64), len(X)))
    X, y = matrix("numbers")
    yield "CSMORegressor", lambda: fitted(CSMORegressor(C=2.0).fit(X, y), X)
    yield (
        "to_budget numbers",
        lambda: known(
            to_budget(CSMORegressor().fit(X, y), 20, X, passes=3, feature_names=list(STREAMS["numbers"][0][0]), seed=1), "numbers"
        ),
    )
    yield "adapter numbers", lambda: adapted(CSMORegressor(), "numbers")


def hss(matrix: HSSMatrix, n: int) -> str:
    """Return a digest of products and solutions of a compressed matrix."""
    v = np.random.default_rng(0).normal(size=(n, 2))
    factor = matrix.factorize(0.5)
    return digest(matrix @ v, factor.solve(v))


def adapted(solver: Any, stream: str) -> str:
    """Return a digest of the predictions of an adapter on a stream."""
    model, said = batch_adapter(solver, window=150, refit_every=100), []
    for x, y in STREAMS[stream][:400]:
        said.append(model.predict_one(x) if model.n_fits else None)
        model.learn_one(x, y)
    return digest(said)


def linear_cases() -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield a name and a function for out-of-core machines, their files, and learners that continue from them."""

    def rows_file(stream: str, folder: Path) -> Path:
        write_rows(iter(STREAMS[stream]), folder / "rows.blocks", memory_limit=2**20)
        return folder / "rows.blocks"

    def text_file(folder: Path) -> Path:
        X, y = matrix("wide")
        lines = [
            f"{1 if label else -1} " + " ".join(f"{j + 1}:{value:.6g}" for j, value in enumerate(row) if value)
            for row, label in zip(X, y, strict=True)
        ]
        (folder / "rows.txt").write_text("\n".join(lines) + "\n")
        write_blocks(folder / "rows.txt", folder / "rows.blocks")
        return folder / "rows.blocks"

    def run(stream: str, model: Any, text: bool = False) -> str:
        with tempfile.TemporaryDirectory() as name:
            path = text_file(Path(name)) if text else rows_file(stream, Path(name))
            model.fit_file(path)
            values = [model.coef_, model.intercept_, model.objective_, model.duality_gap_]
            learner = model.to_online()
            for x, y in STREAMS[stream][:50]:
                if text:
                    x, y = {j + 1: value for j, value in enumerate(x.values())}, 1 if y else -1
                learner.learn_one(x, y)
            return digest(*values, memory(learner))

    for stream in ("two", "wide"):
        for loss in ("hinge", "squared_hinge"):
            for C in (0.1, 10.0):
                yield (
                    f"OutOfCoreLinearSVC {stream} {loss} {C}",
                    lambda s=stream, n=loss, c=C: run(s, OutOfCoreLinearSVC(C=c, loss=n, random_state=0)),
                )
    yield "OutOfCoreLinearSVC text", lambda: run("wide", OutOfCoreLinearSVC(random_state=0), text=True)
    yield "OutOfCoreLinearSVR", lambda: run("numbers", OutOfCoreLinearSVR(random_state=0))


def main() -> int:
    """Write or compare digests."""
    action, path = sys.argv[1], Path(sys.argv[2])
    digests: dict[str, str] = {}
    for cases in (learner_cases, batch_cases, linear_cases):
        for name, case in cases():
            try:
                digests[name] = case()
            except (ValueError, TypeError, AttributeError) as error:
                digests[name] = f"{type(error).__name__}: {error}"
    if action == "write":
        path.write_text(json.dumps(digests, indent=1))
        errors = [f"{name}: {value}" for name, value in digests.items() if " " in value]
        print(f"{len(digests)} digests", *errors, sep="\n")
        return 0
    before = json.loads(path.read_text())
    unlike = [name for name in {**before, **digests} if before.get(name) != digests.get(name)]
    print(*(f"{n}: {before.get(n)} {digests.get(n)}" for n in unlike), f"{len(digests)} digests, {len(unlike)} differ", sep="\n")
    return 1 if unlike else 0


if __name__ == "__main__":
    sys.exit(main())
