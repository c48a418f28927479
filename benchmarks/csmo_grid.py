"""Compares conjugate SMO, plain SMO and scikit-learn on grids of C and gamma, as Torres-Barrán et al. (2021) do.

Totals over folds of fits to a random sample of each set, at three cache sizes, and maps of the time that conjugate directions
save at each C and gamma, as in the paper's figures 2 to 5. CPU seconds of fits, in turn in one process; short fits are repeated,
and the shortest counts, as in the paper. Regressions have one epsilon; SVC and SVR have one cache size, and get dense or sparse
rows, whichever is faster. Run it on one core: ``taskset -c 1 python benchmarks/csmo_grid.py``.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from common import load_file, make_parser, print_table, report_progress, write_json
from csmo import EPSILON, TOL, load_regression, time_fit
from scipy import sparse
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.svm import SVC, SVR

from streamsvm.batch import CSMOClassifier, CSMORegressor

CACHE_SIZES = (1.0, 10.0, 200.0)  # megabytes: for 100, 1,000 and all columns of the kernel matrix of 2,400 rows
PEER_CACHE_SIZE = 200.0
SHORT_FIT_SECONDS = 0.05  # shorter fits are repeated
MAX_RATIOS = {("cadata", 1000.0): 0.75}  # limits of CSMO's seconds over SMO's, for a set and C, totals of all gammas


@dataclass(frozen=True)
class DataGrid:
    """A data set and its grid of C and gamma. ``unit`` divides the targets of a regression; 0 means classification.

    The gammas of a regression are multiples of one over the number of features.
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
    def gammas(self) -> list[float]:
        return [4.0**power for power in range(-3, 2)] if self.unit else [2.0**power for power in range(-12, 4, 3)]

    def draw_rows(self, folder: Path | None, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return ``count`` random rows and their targets, the same in every run."""
        if self.unit:
            X, y = load_regression(self.name, self.unit, folder)
        else:
            arrays = load_file(self.name, folder)
            X, y = arrays["X"].astype(float), arrays["y"] > 0
        sample = np.random.default_rng(0).permutation(len(y))[:count]
        return X[sample], y[sample]


SETS = [
    *(DataGrid(name) for name in ("a9a", "ijcnn1", "phishing", "w7a")),
    DataGrid("abalone", 1.0),
    DataGrid("cpusmall", 1.0),
    DataGrid("cadata", 1e5),
]


def time_fits(models: dict[str, Any], X: Any, y: np.ndarray, repeats: int) -> dict[str, float]:
    """Return the CPU seconds of each model's fit, in turn; the minimum of ``repeats`` if fits are short."""
    seconds = {name: time_fit(model, X, y) for name, model in models.items()}
    if min(seconds.values()) < SHORT_FIT_SECONDS:
        for _ in range(repeats - 1):
            for name, model in models.items():
                seconds[name] = min(seconds[name], time_fit(model, X, y))
    return seconds


def choose_form(peer: Any, X: np.ndarray, y: np.ndarray) -> str:
    """Return the form of rows, "dense" or "sparse", that the peer fits faster."""
    if (X == 0.0).mean() <= 0.5:
        return "dense"
    return "dense" if time_fit(peer, X, y) < time_fit(peer, sparse.csr_array(X), y) else "sparse"


def measure(data: DataGrid, args: argparse.Namespace) -> dict[str, Any]:
    """Return seconds, iterations (totals over folds) and mean scores [C, gamma] of each solver and cache size."""
    X, y = data.draw_rows(args.data, args.rows)
    splitter = (KFold if data.unit else StratifiedKFold)(args.folds, shuffle=True, random_state=0)
    folds = list(splitter.split(X, y))
    unit = 1.0 / X.shape[1] if data.unit else 1.0
    kind, peer = (CSMORegressor, SVR) if data.unit else (CSMOClassifier, SVC)
    common_parameters = {"tol": TOL, **({"epsilon": EPSILON} if data.unit else {})}
    time_fit(kind(**common_parameters), X, y)  # compiles before any time is taken
    form = choose_form(peer(**common_parameters), X, y)
    convert = sparse.csr_array if form == "sparse" else np.asarray
    shape = len(data.costs), len(data.gammas)
    solvers = [f"{solver} {cache:g}" for cache in CACHE_SIZES for solver in ("SMO", "CSMO")] + ["scikit-learn"]
    seconds, iterations, scores = ({solver: np.zeros(shape) for solver in solvers} for _ in range(3))
    for row, C in enumerate(data.costs):
        for column, gamma in enumerate(data.gammas):
            parameters = {**common_parameters, "C": C, "gamma": gamma * unit}
            for number, (learn, test) in enumerate(folds):
                models = {"scikit-learn": peer(cache_size=PEER_CACHE_SIZE, **parameters)}
                fit_seconds = time_fits(models, convert(X[learn]), y[learn], args.repeats)
                for cache in CACHE_SIZES:
                    pair = {
                        f"{'CSMO' if conjugate else 'SMO'} {cache:g}": kind(conjugate=conjugate, cache_size=cache, **parameters)
                        for conjugate in ((False, True) if number % 2 else (True, False))
                    }
                    fit_seconds |= time_fits(pair, X[learn], y[learn], args.repeats)
                    models |= pair
                for name, model in models.items():
                    seconds[name][row, column] += fit_seconds[name]
                    iterations[name][row, column] += int(np.sum(model.n_iter_))
                    rows = (convert if name == "scikit-learn" else np.asarray)(X[test])
                    scores[name][row, column] += 100.0 * model.score(rows, y[test]) / len(folds)
    return {
        "kind": data.kind,
        "rows": len(y),
        "form": form,
        "C": data.costs,
        "gamma": [gamma * unit for gamma in data.gammas],
        "seconds": {name: values.tolist() for name, values in seconds.items()},
        "iterations": {name: values.tolist() for name, values in iterations.items()},
        "scores": {name: values.tolist() for name, values in scores.items()},
    }


def compute_ratio(result: dict[str, Any], quantity: str, cache: float, axis: Any = None) -> Any:
    """Return the ratio of CSMO's seconds or iterations to SMO's, summed over ``axis``."""
    csmo, smo = (np.sum(result[quantity][f"{solver} {cache:g}"], axis=axis) for solver in ("CSMO", "SMO"))
    return csmo / smo


def print_totals(results: dict[str, Any], args: argparse.Namespace) -> None:
    rows = []
    for name, result in results.items():
        peer = np.sum(result["seconds"]["scikit-learn"])
        for cache in CACHE_SIZES:
            smo, csmo = f"SMO {cache:g}", f"CSMO {cache:g}"
            steps = [np.sum(result["iterations"][solver]) for solver in (smo, csmo)]
            seconds = [np.sum(result["seconds"][solver]) for solver in (smo, csmo)]
            rows.append((
                name,
                f"{result['rows']:,}",
                f"{cache:g}",
                f"{steps[0]:,.0f}",
                f"{steps[1]:,.0f}",
                f"{steps[1] / steps[0]:.2f}",
                f"{seconds[0]:.2f}",
                f"{seconds[1]:.2f}",
                f"{seconds[1] / seconds[0]:.3f}",
                "yes" if seconds[1] <= seconds[0] else "NO",
                f"{peer:.1f} ({result['form']})" if cache == PEER_CACHE_SIZE else "",
                f"{peer / seconds[1]:.1f}" if cache == PEER_CACHE_SIZE else "",
            ))  # fmt: skip
    print_table(
        f"Totals of {args.folds} folds over the grid (classification 6 C x 6 gamma, regression 5 x 5 at epsilon {EPSILON:g}), on "
        f"up to {args.rows:,} random rows a set; SVC and SVR at {PEER_CACHE_SIZE:g} MB only",
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


def print_costs(results: dict[str, Any], args: argparse.Namespace) -> None:
    all_costs = sorted({C for result in results.values() for C in result["C"]})
    rows = []
    for name, result in results.items():
        for cache in CACHE_SIZES:
            steps, seconds = (
                dict(zip(result["C"], compute_ratio(result, quantity, cache, 1), strict=True))
                for quantity in ("iterations", "seconds")
            )
            limits = [(C, limit) for (limited_name, C), limit in MAX_RATIOS.items() if limited_name == name]
            rows.append((
                name,
                f"{cache:g}",
                *(f"{steps[C]:.2f} / {seconds[C]:.2f}" if C in steps else "" for C in all_costs),
                ", ".join(f"<= {limit:g} at {C:g}: {'yes' if seconds[C] <= limit else 'NO'}" for C, limit in limits),
            ))  # fmt: skip
    print_table(
        f"CSMO over SMO at each C, steps / seconds: totals of {args.folds} folds and all gammas, "
        f"on up to {args.rows:,} random rows a set",
        ("set", "MB", *(f"C = {C:g}" for C in all_costs), "asked, seconds"),
        rows,
    )


def find_best(result: dict[str, Any], solver: str) -> tuple[int, int]:
    """Return the row (C) and column (gamma) of the highest score."""
    scores = np.array(result["scores"][solver])
    row, column = np.unravel_index(scores.argmax(), scores.shape)
    return int(row), int(column)


def print_best(results: dict[str, Any], args: argparse.Namespace) -> None:
    rows = []
    for name, result in results.items():
        solvers = [f"SMO {PEER_CACHE_SIZE:g}", f"CSMO {PEER_CACHE_SIZE:g}", "scikit-learn"]
        chosen = [find_best(result, solver) for solver in solvers]
        row, column = chosen[1]
        scores = [np.array(result["scores"][solver]) for solver in solvers]
        rows.append((
            name,
            f"{result['C'][row]:g}, {result['gamma'][column]:.2g}",
            *(f"{values.max():.3f}" for values in scores),
            f"{max(np.abs(values - scores[1]).max() for values in scores):.3f}",
            "yes" if len(set(chosen)) == 1 else "NO",
        ))  # fmt: skip
    print_table(
        f"What is selected of up to {args.rows:,} random rows a set: accuracy or R2 in %, means of {args.folds} folds",
        ("set", "C, gamma (CSMO)", "SMO", "CSMO", "SVC, SVR", "largest difference over the grid", "same choice"),
        rows,
    )


def plot_maps(results: dict[str, Any], args: argparse.Namespace) -> None:
    import matplotlib.pyplot as plt  # noqa: PLC0415 - an extra
    from matplotlib.colors import TwoSlopeNorm  # noqa: PLC0415

    panels = [("iterations", PEER_CACHE_SIZE, "steps"), *(("seconds", cache, f"seconds, {cache:g} MB") for cache in CACHE_SIZES)]
    for kind in sorted({result["kind"] for result in results.values()}):
        chosen = {name: result for name, result in results.items() if result["kind"] == kind}
        figure, axes = plt.subplots(
            len(panels), len(chosen), figsize=(3.6 * len(chosen) + 1.0, 3.0 * len(panels)), layout="constrained", squeeze=False
        )
        for row, (quantity, cache, label) in enumerate(panels):
            for axis, (name, result) in zip(axes[row], chosen.items(), strict=True):
                values = compute_ratio(result, quantity, cache, ())
                image = axis.imshow(values, origin="lower", cmap="RdBu", norm=TwoSlopeNorm(1.0, 0.4, 1.6), aspect="auto")
                for (i, j), value in np.ndenumerate(values):
                    axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=7, color="w" if value < 0.55 else "k")
                at_C, at_gamma = find_best(result, f"CSMO {cache:g}")
                axis.plot(at_gamma, at_C + 0.3, "^", color="green", markersize=6)
                axis.set(title=f"{name}: {label}", xlabel="gamma", ylabel="C")
                axis.set_xticks(range(len(result["gamma"])), [f"{gamma:.2g}" for gamma in result["gamma"]], fontsize=7)
                axis.set_yticks(range(len(result["C"])), [f"{C:g}" for C in result["C"]], fontsize=7)
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
    parser.add_argument("--rows", type=int, default=3000, help="maximum number of random rows of each set")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3, help=f"fits of models that take less than {SHORT_FIT_SECONDS:g} s")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    for data in SETS:
        if not args.sets or data.name in args.sets.split(","):
            start = time.process_time()
            results[data.name] = measure(data, args)
            report_progress(f"{data.name}: {time.process_time() - start:.0f} s")
            write_json(args.out, {"scikit-learn": version("scikit-learn"), "folds": args.folds, "sets": results})
    for print_results in (print_totals, print_costs, print_best, plot_maps):
        print_results(results, args)


if __name__ == "__main__":
    main()
