"""Repeats table 2 of the BSCA paper, and measures BSCA with values of C chosen for it.

Qaadan, Schüler and Glasmachers (2019), *Dual SVM training on a budget*: eleven online methods and BSCA, one pass, B = 500.
Only accuracies are compared with the paper's: its times are from another machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import PAPER, Split, compute_accuracies, load_split, make_parser, print_table, report_progress, summarise, write_json
from river import datasets, linear_model, multiclass, preprocessing, tree

from streamsvm import BSCAClassifier, BSGDClassifier
from streamsvm.learners import BOGD, BPAS, FOGD, NOGD, RBP, Forgetron, KernelOGD, KernelPerceptron, Projectron, ProjectronPP

BUDGET = 500
PARTS = ("table", "bsca", "classes", "inverse")
MAX_SHORTFALL = 0.5  # points by which an accuracy may be below the paper's
FREQUENCIES = {"a9a": 4000, "ijcnn1": 1000}  # number of random features of FOGD, the paper's D


def _get_fixed_parameters(setting: Any, features: int) -> dict[str, Any]:
    return {"gamma": setting.gamma, "scaling": None, "max_features": features}


#: The methods of table 2. Parameters that the paper does not give (steps of the gradient methods, eta of the projectrons, C of
#: BPA-S) are chosen once, for both sets. Methods without removals are averaged; the table also has their last iterates.
METHODS: dict[str, Callable[[str, int, dict[str, Any], int], Any]] = {
    "Perceptron": lambda _, n, fixed, __: KernelPerceptron(n, averaging=2000, **fixed),
    "OGD": lambda name, n, fixed, _: KernelOGD(n, averaging=2000, eta0=0.5, l2=PAPER[name].compute_l2(n), **fixed),
    "RBP": lambda _, __, fixed, seed: RBP(BUDGET, seed=seed, **fixed),
    "Forgetron": lambda _, __, fixed, ___: Forgetron(BUDGET, **fixed),
    "Projectron": lambda _, __, fixed, ___: Projectron(BUDGET, averaging=2000, eta=0.05, **fixed),
    "Projectron++": lambda _, __, fixed, ___: ProjectronPP(BUDGET, averaging=2000, eta=0.05, **fixed),
    "BPA-S": lambda _, __, fixed, ___: BPAS(BUDGET, C=0.5, **fixed),
    "BOGD": lambda _, __, fixed, seed: BOGD(BUDGET, eta0=0.1, l2=0.01, seed=seed, **fixed),
    "BSGD": lambda name, n, fixed, _: BSGDClassifier(BUDGET, l2=PAPER[name].compute_l2(n), max_classes=2, **fixed),
    "FOGD": lambda name, _, fixed, seed: FOGD(FREQUENCIES[name], eta0=0.5, seed=seed, **fixed),
    "NOGD": lambda _, __, fixed, ___: NOGD(BUDGET, eta0=0.1, **fixed),
    "BSCA, the paper's": lambda name, _, fixed, __: BSCAClassifier(
        BUDGET, C=PAPER[name].C, relaxation=1.0, reprocess=0, tol=0.0, averaging=0, max_classes=2, seed=0, **fixed
    ),
    "BSCA": lambda _, __, fixed, ___: BSCAClassifier(BUDGET, max_classes=2, seed=0, **fixed),
}

# Test accuracies. Projectron's 25 % are those of always predicting the rarer class: an artefact.
PAPER_TABLE = {
    "a9a": {
        "Perceptron": 83.35,
        "OGD": 84.50,
        "RBP": 76.38,
        "Forgetron": 83.39,
        "Projectron": 25.65,
        "Projectron++": 82.59,
        "BPA-S": 83.44,
        "BOGD": 76.38,
        "BSGD": 80.74,
        "FOGD": 82.00,
        "NOGD": 83.15,
        "BSCA, the paper's": 83.18,
        "BSCA": 83.18,
    },
    "ijcnn1": {
        "Perceptron": 95.75,
        "OGD": 94.59,
        "RBP": 91.74,
        "Forgetron": 92.74,
        "Projectron": 96.24,
        "Projectron++": 96.77,
        "BPA-S": 95.01,
        "BOGD": 91.01,
        "BSGD": 96.68,
        "FOGD": 90.50,
        "NOGD": 90.50,
        "BSCA, the paper's": 97.27,
        "BSCA": 97.27,
    },
}

#: C chosen for BSCA. `TARGETS`: minimum mean accuracy, maximum standard deviation, maximum time over BSGD's.
OWN_C = {"a9a": 0.3, "ijcnn1": 1.2, "phishing": 1.0, "skin": 1.0, "w7a": 1.0}
REPLAY = {"replay": 20_000, "replay_steps": 3, "reprocess": 0}
REPLAY_C = {**OWN_C, "ijcnn1": 0.8}  # replayed rows need a smaller C
REPLAY_TARGETS = {"ijcnn1": 98.55, "phishing": 96.6}
TARGETS = {
    "a9a": (84.8, 0.15, 1.5),
    "ijcnn1": (98.4, 0.2, 1.5),
    "phishing": (96.3, None, 1.7),
    "skin": (99.94, None, 1.5),
    "w7a": (98.3, None, 1.5),
}


def run_pass(model: Any, split: Split, seed: int) -> dict[str, float]:
    """Learn the shuffled rows in one pass, and return the time of ``learn_many`` and test accuracies."""
    X, y = split.shuffle_rows(np.random.default_rng(seed))
    start = time.perf_counter()
    model.learn_many(X, y)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "us": 1e6 * seconds / len(y), **compute_accuracies(model, split.X_test, split.y_test)}


def run_method(job: tuple[str, str, int, Path | None]) -> dict[str, Any]:
    name, method, seed, data = job
    split = load_split(name, data)
    model = METHODS[method](name, len(split.y), _get_fixed_parameters(PAPER[name], split.X.shape[1]), seed)
    return {"set": name, "method": method, "seed": seed, **run_pass(model, split, seed)}


def measure_table(args: argparse.Namespace) -> list[dict[str, Any]]:
    jobs = [(name, method, seed, args.data) for name in PAPER_TABLE for method in args.methods for seed in range(args.seeds)]
    for method in args.methods:  # compiles before any time is taken
        METHODS[method]("a9a", 100, {"gamma": 1.0, "max_features": 4}, 0).learn_many(np.eye(4, dtype=np.float32), [0, 1, 0, 1])
    runs = []
    with multiprocessing.Pool(args.processes) as pool:
        for i, run in enumerate(pool.imap(run_method, jobs)):
            runs.append(run)
            write_json(args.out, {"table": runs})  # so that an interrupted run leaves its results so far
            report_progress(f"table {i + 1}/{len(jobs)}: {run['set']} {run['method']} {run['auto']:.2f} % {run['seconds']:.1f} s")
    return runs


def print_table_2(runs: list[dict[str, Any]]) -> None:
    rows = []
    for name, paper in PAPER_TABLE.items():
        for method, expected in paper.items():
            chosen = [run for run in runs if (run["set"], run["method"]) == (name, method)]
            if chosen:
                ours, last, seconds = (summarise([run[field] for run in chosen]) for field in ("auto", "last", "seconds"))
                rows.append(
                    (
                        name,
                        method,
                        len(chosen),
                        f"{seconds['min']:.2f} {seconds['median']:.2f} {seconds['max']:.2f}",
                        f"{ours['mean']:.2f} ± {ours['std']:.2f}",
                        f"{last['mean']:.2f} ± {last['std']:.2f}",
                        f"{expected:.2f}",
                        f"{ours['mean'] - expected:+.2f}",
                        "yes" if ours["mean"] >= expected - MAX_SHORTFALL else "NO",
                    )
                )
    print_table(
        "One pass, B = 500: table 2 of Qaadan et al. (2019)",
        (
            "set",
            "method",
            "runs",
            "seconds, min median max",
            "accuracy %",
            "last iterate %",
            "paper %",
            "difference",
            f">= -{MAX_SHORTFALL}",
        ),
        rows,
    )


def measure_bsca(args: argparse.Namespace) -> dict[str, Any]:
    """Return statistics of runs of BSCA and BSGD on each set, in turn, so that a busy machine slows down both."""
    results: dict[str, Any] = {}
    for model in (BSCAClassifier(2, max_classes=2), BSCAClassifier(2, max_classes=2, replay=2), BSGDClassifier(2, max_classes=2)):
        model.learn_many(np.eye(4, dtype=np.float32), [0, 1, 0, 1])  # compiles before any time is taken
    for name, C in OWN_C.items():
        split = load_split(name, args.data)
        fixed = {**_get_fixed_parameters(PAPER[name], split.X.shape[1]), "max_classes": 2, "seed": 0}
        runs_by_model: dict[str, list[dict[str, float]]] = {"own C": [], "default": [], "BSGD": [], "replay": []}
        for seed in range(args.seeds):
            runs_by_model["own C"].append(run_pass(BSCAClassifier(BUDGET, C=C, **fixed), split, seed))
            runs_by_model["default"].append(
                run_pass(BSCAClassifier(BUDGET, **fixed), split, seed) if C != 1.0 else runs_by_model["own C"][-1]
            )
            runs_by_model["replay"].append(run_pass(BSCAClassifier(BUDGET, C=REPLAY_C[name], **REPLAY, **fixed), split, seed))
            runs_by_model["BSGD"].append(
                run_pass(BSGDClassifier(BUDGET, l2=PAPER[name].compute_l2(len(split.y)), **fixed), split, seed)
            )
        results[name] = {
            "C": C,
            **{key: {field: summarise([run[field] for run in runs]) for field in runs[0]} for key, runs in runs_by_model.items()},
        }
        report_progress(f"bsca: {name} {results[name]['own C']['auto']['mean']:.2f} %")
    return results


def print_bsca(results: dict[str, Any]) -> None:
    rows = []
    for name, result in results.items():
        mean, std, times = TARGETS[name]
        ours, default, last = result["own C"]["auto"], result["default"]["auto"], result["own C"]["last"]
        ratio = result["own C"]["us"]["median"] / result["BSGD"]["us"]["median"]
        met = ours["mean"] >= mean and (std is None or ours["std"] <= std)
        bound = f">= {mean}" + (f", <= {std}" if std else "")
        rows.append(
            (
                name,
                result["C"],
                f"{ours['mean']:.2f} ± {ours['std']:.2f}",
                f"{'yes' if met else 'NO'} ({bound})",
                f"{last['mean']:.2f} ± {last['std']:.2f}",
                f"{default['mean']:.2f} ± {default['std']:.2f}",
                f"{result['BSGD']['auto']['mean']:.2f} ± {result['BSGD']['auto']['std']:.2f}",
                _format_replay(name, result["replay"]["auto"]),
                "{min:.2f} {median:.2f} {max:.2f}".format(**result["own C"]["us"]),
                f"{ratio:.2f}x {'yes' if ratio <= times else 'NO'} (<= {times})",
            )
        )
    print_table(
        "BSCA after one pass, B = 500, the paper's gamma: test accuracy %, mean ± std",
        (
            "set",
            "C",
            "BSCA",
            "met",
            "its last iterate",
            "at C = 1",
            "BSGD",
            "with replay",
            "us a row, min median max",
            "over BSGD's",
        ),
        rows,
    )


def _format_replay(name: str, accuracy: dict[str, float]) -> str:
    minimum = REPLAY_TARGETS.get(name)
    verdict = "" if minimum is None else f" {'yes' if accuracy['mean'] >= minimum else 'NO'} (>= {minimum})"
    return f"{accuracy['mean']:.2f} ± {accuracy['std']:.2f}{verdict}"


def measure_classes(args: argparse.Namespace) -> dict[str, Any]:
    """Return prequential accuracies with several classes, also of one-vs-rest and river's models, and the cost of ten classes."""
    streams = {"river's ImageSegments": list(datasets.ImageSegments()), "scikit-learn's digits": list(_iter_digits())}
    learners = {
        "BSGDClassifier": lambda: BSGDClassifier(BUDGET, seed=0),
        "BSCAClassifier": lambda: BSCAClassifier(BUDGET, seed=0),
        "one BSCAClassifier a class": lambda: multiclass.OneVsRestClassifier(BSCAClassifier(BUDGET, max_classes=2, seed=0)),
        "river SoftmaxRegression": linear_model.SoftmaxRegression,
        "river HoeffdingTreeClassifier": tree.HoeffdingTreeClassifier,
    }
    results: dict[str, Any] = {}
    for name, rows in streams.items():
        for label, make in learners.items():
            model = preprocessing.StandardScaler() | make()
            for x, y in rows[:1000]:  # compiles before any time is taken
                model.predict_one(x)
                model.learn_one(x, y)
            model, n_right = preprocessing.StandardScaler() | make(), 0
            start = time.perf_counter()
            for x, y in rows:
                n_right += model.predict_one(x) == y
                model.learn_one(x, y)
            microseconds = 1e6 * (time.perf_counter() - start) / len(rows)
            results.setdefault(name, {})[label] = {"accuracy": 100.0 * n_right / len(rows), "us": microseconds}
            report_progress(f"classes: {name}, {label} {100.0 * n_right / len(rows):.2f} %")
    rng = np.random.default_rng(0)
    # 40 clusters of rows with 22 features: 20 for each of two classes, or 4 for each of ten
    cluster = rng.integers(40, size=30_000)
    X = (rng.normal(size=(40, 22))[cluster] * 1.2 + rng.normal(size=(30_000, 22))).astype(np.float32)
    costs: dict[str, Any] = {}
    for classes in (2, 10):
        seconds = []
        for _ in range(args.seeds):
            model = BSGDClassifier(BUDGET, gamma=0.03, scaling=None, l2=1e-5, max_features=22, seed=0)
            model.learn_many(X[:10_000], cluster[:10_000] % classes)
            start = time.perf_counter()
            model.learn_many(X[10_000:], cluster[10_000:] % classes)
            seconds.append(1e6 * (time.perf_counter() - start) / 20_000)
        costs[str(classes)] = {"us": summarise(seconds), "bytes": model.nbytes}
    return {"streams": results, "costs": costs}


def _iter_digits() -> Iterator[tuple[dict[str, float], int]]:
    from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra

    X, y = load_digits(return_X_y=True)
    for i in np.random.default_rng(0).permutation(len(y)):
        yield {f"pixel {j}": value for j, value in enumerate(X[i].tolist())}, int(y[i])


def print_classes(results: dict[str, Any]) -> None:
    rows = [
        (name, label, f"{result['accuracy']:.2f}", f"{result['us']:.1f}")
        for name, learners in results["streams"].items()
        for label, result in learners.items()
    ]
    print_table("Several classes, prequential, B = 500", ("stream", "model", "accuracy %", "us a row"), rows)
    costs = results["costs"]
    two, ten = costs["2"], costs["10"]
    print_table(
        "Ten classes over two, B = 500, 22 features",
        ("", "two", "ten", "ratio"),
        [
            (
                "us a row of learn_many",
                *(f"{c['us']['median']:.2f}" for c in (two, ten)),
                _format_ratio(ten, two, "us", "median"),
            ),
            ("bytes", two["bytes"], ten["bytes"], _format_ratio(ten, two, "bytes")),
        ],
    )


def _format_ratio(a: Any, b: Any, *path: str) -> str:
    for key in path:
        a, b = a[key], b[key]
    return f"{a / b:.2f}"


def measure_inverse(_: argparse.Namespace) -> dict[str, float]:
    """Return the largest entry of K K^-1 - I in a Projectron after 10,000, 100,000 and a million rows."""
    rng = np.random.default_rng(0)
    model = Projectron(BUDGET, gamma=0.5, eta=0.05, max_features=8)
    residuals: dict[str, float] = {}
    for block in range(1, 101):
        X = rng.normal(size=(10_000, 8)).astype(np.float32)
        y = np.sin(2.0 * X[:, 0]) * X[:, 1] + 0.3 * X[:, 2] + 0.3 * rng.normal(size=10_000) > 0.0
        model.learn_many(X, y)
        if block in (1, 10, 100):
            S = model.support_vectors.astype(float)
            K = np.exp(-0.5 * ((S[:, None] - S[None]) ** 2).sum(axis=2))
            inverse = model._store.views.gram[: len(S), : len(S)]
            residuals[f"{block * 10_000:,}"] = float(np.abs(K @ inverse - np.eye(len(S))).max())
            report_progress(f"inverse: {block * 10_000:,} rows {residuals[f'{block * 10_000:,}']:.1e}")
    return residuals


def main() -> None:
    parser = make_parser(__doc__, "online_family")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), help="methods of the table")
    parser.add_argument("--seeds", type=int, default=10, help="number of random orders of the rows")
    parser.add_argument("--processes", type=int, default=1, help="processes for the table; times need one")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    if "table" in args.parts:
        results["table"] = measure_table(args)
        print_table_2(results["table"])
    if "bsca" in args.parts:
        results["bsca"] = measure_bsca(args)
        print_bsca(results["bsca"])
    if "classes" in args.parts:
        results["classes"] = measure_classes(args)
        print_classes(results["classes"])
    if "inverse" in args.parts:
        results["inverse"] = measure_inverse(args)
        print_table("Projectron: residual of its inverse", ("rows", "largest |K K^-1 - I|"), list(results["inverse"].items()))
    write_json(args.out, results)


if __name__ == "__main__":
    main()
