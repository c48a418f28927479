"""Conjugate SMO, plain SMO and scikit-learn's SVC and SVR over grids of C and gamma, as in Torres-Barrán et al. (2021).

Totals over folds of fits to a random sample of each set, at three cache sizes, and maps of what conjugate directions save for
each C and gamma, as in the paper's figures 2 to 5. CPU seconds of fits in the same process in turn; short fits are repeated and
their least seconds count, as in the paper. Regressions at one epsilon; SVC and SVR at one cache size, on dense or sparse rows,
whichever is quicker for them. Run it on one core: ``taskset -c 1 python benchmarks/csmo_grid.py``.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from common import load_file, make_parser, print_table, report_progress, write_results
from csmo import EPSILON, TOL, load_regression, time_fit
from scipy import sparse
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.svm import SVC, SVR

from streamsvm.batch import CSMOClassifier, CSMORegressor

CACHES = (1.0, 10.0, 200.0)  # megabytes: of 2,400 rows a hundred columns, a thousand, and all of them
PEER_CACHE = 200.0
SHORT = 0.05  # seconds, under which a fit is repeated
MOST = {("cadata", 1000.0): 0.75}  # CSMO's seconds over SMO's, of all gammas at that C


@dataclass(frozen=True)
class Data:
    """A set and its grid; ``unit`` is that of a regression's targets, 0 of a classification, and ``gamma`` then absolute; of a
    regression it is in units of one over the number of features.
    """

    name: str
    unit: float = 0.0

    @property
    def kind(self) -> str:
        return "regression" if self.unit else "classification"

    @property
    def costs(self) -> list[float]:
        return [10.0**power for power in range(-1, 4 if self.unit else 5)]

    @property
    def gamma(self) -> list[float]:
        return [4.0**power for power in range(-3, 2)] if self.unit else [2.0**power for power in range(-12, 4, 3)]

    def rows(self, folder: Path | None, count: int) -> tuple[np.ndarray, np.ndarray]:
        """A random sample of the rows, the same in every run."""
        if self.unit:
            X, y = load_regression(self.name, self.unit, folder)
        else:
            arrays = load_file(self.name, folder)
            X, y = arrays["X"].astype(float), arrays["y"] > 0
        some = np.random.default_rng(0).permutation(len(y))[:count]
        return X[some], y[some]


SETS = [
    *(Data(name) for name in ("a9a", "ijcnn1", "phishing", "w7a")),
    Data("abalone", 1.0),
    Data("cpusmall", 1.0),
    Data("cadata", 1e5),
]


def least(models: dict[str, Any], X: Any, y: np.ndarray, repeats: int) -> dict[str, float]:
    """CPU seconds of each model's fit, in turn; the least of ``repeats`` where fits are short."""
    seconds = {name: time_fit(model, X, y) for name, model in models.items()}
    if min(seconds.values()) < SHORT:
        for _ in range(repeats - 1):
            for name, model in models.items():
                seconds[name] = min(seconds[name], time_fit(model, X, y))
    return seconds


def quicker_form(peer: Any, X: np.ndarray, y: np.ndarray) -> str:
    """How the peer is given its rows."""
    if (X == 0.0).mean() <= 0.5:
        return "dense"
    return "dense" if time_fit(peer, X, y) < time_fit(peer, sparse.csr_array(X), y) else "sparse"


def measure(data: Data, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds, iterations and scores [C, gamma], of each solver and cache size; seconds and iterations are totals over folds."""
    X, y = data.rows(args.data, args.rows)
    splitter = (KFold if data.unit else StratifiedKFold)(args.folds, shuffle=True, random_state=0)
    folds = list(splitter.split(X, y))
    unit = 1.0 / X.shape[1] if data.unit else 1.0
    kind, peer = (CSMORegressor, SVR) if data.unit else (CSMOClassifier, SVC)
    own = {"tol": TOL, **({"epsilon": EPSILON} if data.unit else {})}
    time_fit(kind(**own), X, y)  # compiled from here on
    form = quicker_form(peer(**own), X, y)
    convert = sparse.csr_array if form == "sparse" else np.asarray
    shape = len(data.costs), len(data.gamma)
    solvers = [f"{solver} {cache:g}" for cache in CACHES for solver in ("SMO", "CSMO")] + ["scikit-learn"]
    seconds, iterations, scores = ({solver: np.zeros(shape) for solver in solvers} for _ in range(3))
    for row, C in enumerate(data.costs):
        for column, gamma in enumerate(data.gamma):
            given = {**own, "C": C, "gamma": gamma * unit}
            for number, (learn, test) in enumerate(folds):
                models = {"scikit-learn": peer(cache_size=PEER_CACHE, **given)}
                found = least(models, convert(X[learn]), y[learn], args.repeats)
                for cache in CACHES:
                    pair = {
                        f"{'CSMO' if conjugate else 'SMO'} {cache:g}": kind(conjugate=conjugate, cache_size=cache, **given)
                        for conjugate in ((False, True) if number % 2 else (True, False))
                    }
                    found |= least(pair, X[learn], y[learn], args.repeats)
                    models |= pair
                for name, model in models.items():
                    seconds[name][row, column] += found[name]
                    iterations[name][row, column] += int(np.sum(model.n_iter_))
                    rows = (convert if name == "scikit-learn" else np.asarray)(X[test])
                    scores[name][row, column] += 100.0 * model.score(rows, y[test]) / len(folds)
    return {
        "kind": data.kind,
        "rows": len(y),
        "form": form,
        "C": data.costs,
        "gamma": [gamma * unit for gamma in data.gamma],
        "seconds": {name: values.tolist() for name, values in seconds.items()},
        "iterations": {name: values.tolist() for name, values in iterations.items()},
        "scores": {name: values.tolist() for name, values in scores.items()},
    }


def ratio(found: dict[str, Any], what: str, cache: float, over: Any = None) -> Any:
    """CSMO's over SMO's, of totals over the axes ``over``."""
    own, other = (np.sum(found[what][f"{solver} {cache:g}"], axis=over) for solver in ("CSMO", "SMO"))
    return own / other


def show_totals(results: dict[str, Any], args: argparse.Namespace) -> None:
    rows = []
    for name, found in results.items():
        peer = np.sum(found["seconds"]["scikit-learn"])
        for cache in CACHES:
            smo, csmo = f"SMO {cache:g}", f"CSMO {cache:g}"
            steps = [np.sum(found["iterations"][solver]) for solver in (smo, csmo)]
            seconds = [np.sum(found["seconds"][solver]) for solver in (smo, csmo)]
            rows.append((
                name,
                f"{found['rows']:,}",
                f"{cache:g}",
                f"{steps[0]:,.0f}",
                f"{steps[1]:,.0f}",
                f"{steps[1] / steps[0]:.2f}",
                f"{seconds[0]:.2f}",
                f"{seconds[1]:.2f}",
                f"{seconds[1] / seconds[0]:.3f}",
                "yes" if seconds[1] <= seconds[0] else "NO",
                f"{peer:.1f} ({found['form']})" if cache == PEER_CACHE else "",
                f"{peer / seconds[1]:.1f}" if cache == PEER_CACHE else "",
            ))  # fmt: skip
    print_table(
        f"Totals of {args.folds} folds over the grid (classification 6 C x 6 gamma, regression 5 x 5 at epsilon {EPSILON:g}), on "
        f"up to {args.rows:,} random rows a set; SVC and SVR at {PEER_CACHE:g} MB only",
        (
            "set",
            "rows",
            "MB",
            "steps: SMO",
            "CSMO",
            "ratio",
            "seconds: SMO",
            "CSMO",
            "ratio",
            "no worse",
            "SVC, SVR",
            "times CSMO",
        ),
        rows,
    )


def show_each_cost(results: dict[str, Any], args: argparse.Namespace) -> None:
    largest = sorted({C for found in results.values() for C in found["C"]})
    rows = []
    for name, found in results.items():
        for cache in CACHES:
            steps, seconds = (
                dict(zip(found["C"], ratio(found, what, cache, 1), strict=True)) for what in ("iterations", "seconds")
            )
            asked = [(C, most) for (wanted, C), most in MOST.items() if wanted == name]
            rows.append((
                name,
                f"{cache:g}",
                *(f"{steps[C]:.2f} / {seconds[C]:.2f}" if C in steps else "" for C in largest),
                ", ".join(f"<= {most:g} at {C:g}: {'yes' if seconds[C] <= most else 'NO'}" for C, most in asked),
            ))  # fmt: skip
    print_table(
        f"CSMO over SMO at each C, steps / seconds: totals of {args.folds} folds and all gammas, "
        f"on up to {args.rows:,} random rows a set",
        ("set", "MB", *(f"C = {C:g}" for C in largest), "asked, seconds"),
        rows,
    )


def best(found: dict[str, Any], solver: str) -> tuple[int, int]:
    """Where the score is highest."""
    scores = np.array(found["scores"][solver])
    row, column = np.unravel_index(scores.argmax(), scores.shape)
    return int(row), int(column)


def show_best(results: dict[str, Any], args: argparse.Namespace) -> None:
    rows = []
    for name, found in results.items():
        solvers = [f"SMO {PEER_CACHE:g}", f"CSMO {PEER_CACHE:g}", "scikit-learn"]
        chosen = [best(found, solver) for solver in solvers]
        row, column = chosen[1]
        scores = [np.array(found["scores"][solver]) for solver in solvers]
        rows.append((
            name,
            f"{found['C'][row]:g}, {found['gamma'][column]:.2g}",
            *(f"{values.max():.3f}" for values in scores),
            f"{max(np.abs(values - scores[1]).max() for values in scores):.3f}",
            "yes" if len(set(chosen)) == 1 else "NO",
        ))  # fmt: skip
    print_table(
        f"What is selected of up to {args.rows:,} random rows a set: accuracy or R2 in %, means of {args.folds} folds",
        ("set", "C, gamma (CSMO)", "SMO", "CSMO", "SVC, SVR", "largest difference over the grid", "same choice"),
        rows,
    )


def draw(results: dict[str, Any], args: argparse.Namespace) -> None:
    import matplotlib.pyplot as plt  # noqa: PLC0415 - an extra
    from matplotlib.colors import TwoSlopeNorm  # noqa: PLC0415

    panels = [("iterations", PEER_CACHE, "steps"), *(("seconds", cache, f"seconds, {cache:g} MB") for cache in CACHES)]
    for kind in sorted({found["kind"] for found in results.values()}):
        chosen = {name: found for name, found in results.items() if found["kind"] == kind}
        figure, axes = plt.subplots(
            len(panels), len(chosen), figsize=(3.6 * len(chosen) + 1.0, 3.0 * len(panels)), layout="constrained", squeeze=False
        )
        for row, (what, cache, label) in enumerate(panels):
            for axis, (name, found) in zip(axes[row], chosen.items(), strict=True):
                values = ratio(found, what, cache, ())
                image = axis.imshow(values, origin="lower", cmap="RdBu", norm=TwoSlopeNorm(1.0, 0.4, 1.6), aspect="auto")
                for (i, j), value in np.ndenumerate(values):
                    axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=7, color="w" if value < 0.55 else "k")
                at_C, at_gamma = best(found, f"CSMO {cache:g}")
                axis.plot(at_gamma, at_C + 0.3, "^", color="green", markersize=6)
                axis.set(title=f"{name}: {label}", xlabel="gamma", ylabel="C")
                axis.set_xticks(range(len(found["gamma"])), [f"{gamma:.2g}" for gamma in found["gamma"]], fontsize=7)
                axis.set_yticks(range(len(found["C"])), [f"{C:g}" for C in found["C"]], fontsize=7)
        figure.colorbar(image, ax=axes, shrink=0.4, extend="both", label="CSMO over SMO; where it is red, CSMO is better")
        figure.suptitle(
            f"Totals of {args.folds} folds of up to {args.rows:,} random rows a set; the triangle marks the best score"
        )
        path = args.out.with_name(f"{args.out.stem}_{kind}.png")
        figure.savefig(path, dpi=100)
        plt.close(figure)
        report_progress(f"drawn: {path}")


def main() -> None:
    parser = make_parser(__doc__, "csmo_grid")
    parser.add_argument("--sets", default="", help="comma-separated names of data sets; empty: all")
    parser.add_argument("--rows", type=int, default=3000, help="of the random sample of each set, at most")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3, help=f"of fits under {SHORT:g} s")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    for data in SETS:
        if not args.sets or data.name in args.sets.split(","):
            begin = time.process_time()
            results[data.name] = measure(data, args)
            report_progress(f"{data.name}: {time.process_time() - begin:.0f} s")
            write_results(args.out, {"scikit-learn": version("scikit-learn"), "folds": args.folds, "sets": results})
    for present in (show_totals, show_each_cost, show_best, draw):
        present(results, args)


if __name__ == "__main__":
    main()
