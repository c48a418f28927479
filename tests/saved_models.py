"""Small models of several kinds as files, with the answers that they gave; and whether a reader answers alike.

``python tests/saved_models.py write FOLDER`` writes them by the whole library. The folders of ``tests/edge/golden`` were written
so, one for each version of the format; they stay as they are. ``python tests/saved_models.py check FOLDER`` reads them by numpy
alone.
"""

import json
import math
import sys
from pathlib import Path

ROWS = [{name: math.sin(1.3 * i + 7.1 * place) for place, name in enumerate("abc")} for i in range(60)]
ROWS[7].pop("b")
TABLE = [{**x, "city": ("Oslo", "Rom", "Bern", "")[i % 4]} for i, x in enumerate(ROWS)]


def models():
    """Give models by their names, with the rows that each has learned."""
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
    yield "committee", SVMClassifier(max_features=4, seed=0), ROWS, three
    yield "committee of numbers", SVMRegressor(max_features=4, seed=0), ROWS, number


def machines():
    """Give fitted machines by their names, with rows."""
    import numpy as np

    from streamsvm.batch import CSMOClassifier, CSMOOneClass, HierarchicalSVR
    from streamsvm.linear import OutOfCoreLinearSVC

    X = np.array([[x.get(name, 0.0) for name in "abc"] for x in ROWS])
    y = np.array(["low", "middle", "high"])[(X[:, 0] > -0.4).astype(int) + (X[:, 0] > 0.4)]
    yield "machine of three labels", CSMOClassifier(C=10.0).fit(X, y)
    yield "machine of one class", CSMOOneClass(nu=0.2).fit(X)
    yield "machine with trees", HierarchicalSVR(n_trees=2, leaf_size=20, rank=8, random_state=0).fit(X, X[:, 0] * X[:, 2])
    yield "linear machine", OutOfCoreLinearSVC().fit(X, y == "high")


def write(folder, largest=None):
    """Write models and their answers; of a model whose file has more than ``largest`` bytes the program alone."""
    import streamsvm
    from streamsvm.export.forms import export

    folder.mkdir(parents=True, exist_ok=True)
    expected = {}

    def put(name, model, answers):
        path = folder / f"{name.replace(' ', '-')}.safetensors"
        streamsvm.save(model, path)
        if largest is not None and path.stat().st_size > largest:
            path.unlink()
            [path] = export(model, "numpy", folder, path.stem)
        expected[path.name] = answers

    for name, model, rows, targets in models():
        for i, x in enumerate(rows):
            model.learn_one(x) if targets is None else model.learn_one(x, targets[i])
        ask = model.score_one if targets is None else model.predict_one
        put(name, model, [ask(x) for x in rows])
    try:
        fitted = list(machines())
    except ImportError:  # scikit-learn is an extra
        fitted = []
    for name, model in fitted:
        put(name, model, model.predict([[x.get(column, 0.0) for column in "abc"] for x in ROWS]).tolist())
    (folder / "expected.json").write_text(
        "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in expected.items()) + "\n}\n"
    )


def row_of(predictor, i):
    """Row i for a predictor, whose columns may be numbers."""
    if predictor.columns == [0, 1, 2]:
        return dict(enumerate(ROWS[i].get(name, 0.0) for name in "abc"))
    return TABLE[i]  # which has what the others have, and one field that they do not know


def check(folder):
    """Return the names of the files, whose predictors answer as expected; AssertionError where one does not."""
    from streamsvm import edge

    expected = json.loads((folder / "expected.json").read_text())
    for name, answers in expected.items():
        predictor = edge.load(folder / name)
        found = [predictor.predict_one(row_of(predictor, i)) for i in range(len(ROWS))]
        if predictor.kind == "class":
            assert found == answers, name
        else:
            assert all(math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-5) for a, b in zip(found, answers, strict=True)), name
    return list(expected)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]), largest=2**14)
    print(f"{len(check(Path(sys.argv[2])))} files answer as expected")  # noqa: T201
