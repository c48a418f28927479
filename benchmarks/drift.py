"""Compares reactions to detected concept drift: no reaction, a new model, or a challenger that must first be more accurate.

Streams are in two halves, as in `streams.py`: a reaction chosen on half A is confirmed on half B. Gains are points of prequential
accuracy over the same model without a detector.

``--recovery`` measures instead how fast learners, and river's forests, recover their accuracy after an abrupt change.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from common import load_file, make_parser, print_table, report_progress, to_dicts, write_json
from river import drift, ensemble, forest
from river.datasets import synth

from streamsvm import BSCAClassifier, BSGDClassifier, SVMClassifier

Pairs = list[tuple[dict[Any, Any], bool]]
CONCEPT_ROWS = 4_000  # rows of a generated concept
RECENT_ROWS = 50  # as in `DriftWatch`

LEARNERS: dict[str, Callable[[], Any]] = {
    "auto": lambda: SVMClassifier(seed=0),
    "bsgd 100": lambda: BSGDClassifier(100, seed=0),
    "bsgd 500": lambda: BSGDClassifier(500, seed=0),
    "bsca 100": lambda: BSCAClassifier(100, seed=0),
    "bsca 500": lambda: BSCAClassifier(500, seed=0),
}
DETECTORS: dict[str, Callable[[], Any]] = {
    "ADWIN": drift.ADWIN,
    "PageHinkley": lambda: drift.PageHinkley(threshold=20, mode="up"),
    "DDM": drift.binary.DDM,
    "HDDMA": drift.binary.HDDMA,
}
#: A new model at once; or a challenger, which replaces the model if it has fewer errors. They are compared after these numbers
#: of rows, over the second half of the rows.
REACTIONS: dict[str, tuple[int, ...]] = {
    "reset": (),
    "challenger 500": (500,),
    "challenger 1000": (1000,),
    "challenger 2000": (2000,),
    "challenger 250-2000": (250, 500, 1000, 2000),
}


def make_concepts(parts: Iterable[Iterable[Any]]) -> Pairs:
    return [(x, bool(y)) for part in parts for x, y in itertools.islice(iter(part), CONCEPT_ROWS)]


def load_rows(name: str, folder: Path, rows: slice, shuffled: bool = True, seed: int = 0) -> Pairs:
    arrays = load_file(name, folder)
    order = np.random.default_rng(seed).permutation(len(arrays["y"])) if shuffled else np.arange(len(arrays["y"]))
    order = order[rows]
    return list(zip(to_dicts(arrays["X"][order]), (arrays["y"][order] > 0).tolist(), strict=True))


def flip_labels(rows: Pairs, parts: int) -> Pairs:
    """Split rows into ``parts``, and invert the labels of every other part."""
    return [(x, y ^ (i // (len(rows) // parts) % 2 == 1)) for i, (x, y) in enumerate(rows)]


def make_streams(half: str, folder: Path) -> dict[str, Callable[[], Pairs]]:
    first = slice(12_000)
    if half == "A":
        rbf = {"seed_model": 0, "seed_sample": 0, "n_centroids": 20, "change_speed": 0.001, "n_drift_centroids": 10}
        return {
            "sea": lambda: make_concepts(synth.SEA(v, noise=0.1, seed=v) for v in range(4)),
            "agrawal": lambda: make_concepts(synth.Agrawal(f, seed=f, perturbation=0.05) for f in (0, 3, 6, 8)),
            "elec2, first": lambda: load_rows("elec2", folder, slice(16_000), shuffled=False),
            "magic04, flipped": lambda: flip_labels(load_rows("magic04", folder, first), 3),
            "skin, flipped": lambda: flip_labels(load_rows("skin", folder, first), 4),
            "magic04": lambda: load_rows("magic04", folder, first, seed=1),
            "rbf, slow": lambda: list(itertools.islice(synth.RandomRBFDrift(**rbf), 12_000)),
        }
    hyperplane = {"seed": 0, "n_drift_features": 2, "mag_change": 0.001, "noise_percentage": 0.05}
    return {
        "stagger": lambda: make_concepts(synth.STAGGER(f, seed=f) for f in range(3)),
        "sine": lambda: make_concepts(synth.Sine(f, seed=f) for f in range(4)),
        "elec2, last": lambda: load_rows("elec2", folder, slice(28_000, 44_000), shuffled=False),
        "phishing, flipped": lambda: flip_labels(load_rows("phishing", folder, slice(10_500)), 3),
        "ijcnn1, flipped": lambda: flip_labels(load_rows("ijcnn1", folder, first, shuffled=False), 3),
        "a9a": lambda: load_rows("a9a", folder, first),
        "magic04, skin, magic04": lambda: (
            load_rows("magic04", folder, slice(5_000))
            + load_rows("skin", folder, slice(5_000))
            + load_rows("magic04", folder, slice(5_000, 10_000))
        ),
        "hyperplane, slow": lambda: list(itertools.islice(synth.Hyperplane(**hyperplane), 12_000)),
    }


# Recovery -------------------------------------------------------------------------------------------------------------

RECOVERY_ROWS, N_CONCEPTS = 1_500, 3  # rows of a concept, and number of concepts of a stream
LEVEL_ROWS, WINDOW_ROWS = 500, 250  # last rows of a concept, which define its final accuracy; rows of the moving mean
RECOVERY_MODELS: dict[str, Callable[[], Any]] = {
    "SVMClassifier": LEARNERS["auto"],
    "BSCAClassifier": lambda: BSCAClassifier(seed=0),
    "BSGDClassifier": lambda: BSGDClassifier(seed=0),
    "ARFClassifier": lambda: forest.ARFClassifier(seed=0),
    "SRPClassifier": lambda: ensemble.SRPClassifier(n_models=10, seed=0),
}
#: Functions that return the generator of the i-th concept of a stream.
RECOVERY_STREAMS: dict[str, Callable[[int], Any]] = {
    "SEA": lambda i: synth.SEA((0, 2, 1, 3)[i], noise=0.1, seed=i),
    "Agrawal": lambda i: synth.Agrawal((0, 3, 6, 8)[i], perturbation=0.05, seed=i),
    "STAGGER": lambda i: synth.STAGGER(i % 3, seed=i),
    "Sine": lambda i: synth.Sine(i, seed=i),
    "Mixed": lambda i: synth.Mixed(i % 2, seed=i),
    "LED": lambda i: synth.LEDDrift(seed=i, noise_percentage=0.1, irrelevant_features=True, n_drift_features=(0, 3, 5, 7)[i]),
    "hyperplane": lambda i: synth.Hyperplane(seed=i, noise_percentage=0.05),
    "radial functions": lambda i: synth.RandomRBF(seed_model=i, seed_sample=i, n_features=6, n_centroids=20),
    "tree, 2 labels": lambda i: synth.RandomTree(seed_tree=i, seed_sample=i),
    "tree, 4 labels": lambda i: synth.RandomTree(seed_tree=i, seed_sample=i, n_classes=4),
}


def measure_recovery(make: Callable[[], Any], concept: Callable[[int], Any]) -> dict[str, float]:
    """Return the final accuracy (percent), the rows until it is reached within a point, and excess errors; means of changes."""
    model, is_right = make(), np.zeros((N_CONCEPTS, RECOVERY_ROWS))
    for i in range(N_CONCEPTS):
        for row, (x, y) in enumerate(concept(i).take(RECOVERY_ROWS)):
            is_right[i, row] = model.predict_one(x) == y
            model.learn_one(x, y)
    accuracies = is_right[1:].mean(axis=0)  # no change precedes the first concept
    level = float(accuracies[-LEVEL_ROWS:].mean())
    moving_means = np.convolve(accuracies, np.full(WINDOW_ROWS, 1.0 / WINDOW_ROWS), "valid")
    rows = int(np.argmax(moving_means >= level - 0.01))  # the last rows always reach it
    return {"level": 100.0 * level, "rows": rows, "errors": float((level - accuracies[:-LEVEL_ROWS]).sum())}


def run_recovery(out: Path) -> None:
    """Measure, print and write the recovery of all learners on all streams."""
    results: dict[str, dict[str, Any]] = {}
    for name, concept in RECOVERY_STREAMS.items():
        results[name] = {learner: measure_recovery(make, concept) for learner, make in RECOVERY_MODELS.items()}
        report_progress(f"{name}: {results[name]}")
    for quantity, spec in (("level", ".1f"), ("rows", ".0f"), ("errors", ".0f")):
        table = [
            [name, *(format(result[learner][quantity], spec) for learner in RECOVERY_MODELS)] for name, result in results.items()
        ]
        means = (statistics.fmean(result[learner][quantity] for result in results.values()) for learner in RECOVERY_MODELS)
        print_table(
            f"After a change: {quantity}",
            ["stream", *RECOVERY_MODELS],
            [*table, ["mean", *(format(mean, spec) for mean in means)]],
        )
    write_json(out, {"recovery": results})


class MonitoredModel:
    """A model with a drift detector, as in `DriftWatch`, and perhaps a challenger."""

    def __init__(self, make: Callable[[], Any], detector: Any, trials: tuple[int, ...]) -> None:
        self._make, self._detector, self._comparison_rows = make, detector, trials
        self._model, self._challenger = make(), None
        self._errors: tuple[list[bool], list[bool]] = ([], [])  # of model and challenger, since the challenger began
        self._errors_since_drift: list[bool] = []
        self._recent_error = 0.0
        self.drifts = self.replaced = 0

    def run_row(self, x: Any, y: Any) -> bool:
        """Predict and learn a row, and return whether the prediction was wrong."""
        wrong = self._model.predict_one(x) not in (y, None)
        self._model.learn_one(x, y)
        if self._challenger is not None:
            self._errors[0].append(wrong)
            self._errors[1].append(self._challenger.predict_one(x) != y)
            self._challenger.learn_one(x, y)
            self._compare_challenger(len(self._errors[0]))
        if self._detector is not None:
            self._check_drift(wrong)
        return wrong

    def _compare_challenger(self, rows: int) -> None:
        if rows not in self._comparison_rows:
            return
        old, new = (sum(errors[rows // 2 :]) for errors in self._errors)
        last = rows == self._comparison_rows[-1]
        if new < old - (0.0 if last else (old + new) ** 0.5):  # earlier comparisons need a clear difference
            self._model, self.replaced, last = self._challenger, self.replaced + 1, True
        if last:
            self._challenger = None

    def _check_drift(self, wrong: bool) -> None:
        self._detector.update(int(wrong))
        self._errors_since_drift.append(wrong)
        self._recent_error += (wrong - self._recent_error) / min(len(self._errors_since_drift), RECENT_ROWS)
        if not self._detector.drift_detected:
            return
        worse = self._recent_error > statistics.fmean(self._errors_since_drift)
        self._errors_since_drift = []
        self.drifts += worse
        if worse and not self._comparison_rows:
            self._model, self.replaced = self._make(), self.replaced + 1
        elif worse and self._challenger is None:
            self._challenger, self._errors = self._make(), ([], [])


def measure_accuracy(monitored: MonitoredModel, rows: Pairs) -> float:
    return 100.0 * (1.0 - sum(monitored.run_row(x, y) for x, y in rows) / len(rows))


def main() -> None:
    parser = make_parser(__doc__, "drift")
    parser.add_argument("--learners", nargs="*", choices=LEARNERS, default=list(LEARNERS))
    parser.add_argument("--detectors", nargs="*", choices=DETECTORS, default=list(DETECTORS))
    parser.add_argument("--reactions", nargs="*", choices=REACTIONS, default=list(REACTIONS))
    parser.add_argument("--recovery", action="store_true", help="measure only how fast learners recover from changes")
    options = parser.parse_args()
    if options.recovery:
        run_recovery(options.out)
        return
    results: dict[str, Any] = {}
    for half, learner in itertools.product("AB", options.learners):
        for name, make in make_streams(half, options.data).items():
            rows = make()
            base = measure_accuracy(MonitoredModel(LEARNERS[learner], None, ()), rows)
            for detector, reaction in itertools.product(options.detectors, options.reactions):
                monitored = MonitoredModel(LEARNERS[learner], DETECTORS[detector](), REACTIONS[reaction])
                gain = measure_accuracy(monitored, rows) - base
                result = {"base": base, "gain": gain, "drifts": monitored.drifts, "replaced": monitored.replaced}
                results[" | ".join((half, learner, name, detector, reaction))] = result
            report_progress(f"{half}: {name}, {learner}: {base:.2f} %")
    for half, kind in itertools.product("AB", ("auto", "budgeted")):
        table = []
        for detector, reaction in itertools.product(options.detectors, options.reactions):
            runs = []
            for key, result in results.items():
                run_half, learner, _, *settings = key.split(" | ")
                if run_half == half and settings == [detector, reaction] and (learner == "auto") == (kind == "auto"):
                    runs.append(result)
            if runs:
                gains = [run["gain"] for run in runs]
                counts = [sum(run[name] for run in runs) for name in ("drifts", "replaced")]
                gain_cells = (f"{value:+.2f}" for value in (statistics.fmean(gains), min(gains), max(gains)))
                table.append([f"{detector}, {reaction}", *gain_cells, len(gains), *counts])
        if table:
            print_table(
                f"Half {half}, {kind}", ["detector, reaction", "mean", "worst", "best", "runs", "drifts", "replaced"], table
            )
    write_json(options.out, {"results": results})


if __name__ == "__main__":
    main()
