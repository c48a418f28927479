"""What to do about a drift that a detector has found: nothing, a new model, or a new one that has to prove itself.

Streams are in two halves, as in `streams.py`: what is chosen on half A is confirmed on half B. Gains are points of prequential
accuracy against the same model without a detector.

``--recovery`` asks instead how soon a learner is as good again after an abrupt change as it will be, beside river's forests.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from common import load_file, make_parser, print_table, report_progress, to_dict_rows, write_results
from river import drift, ensemble, forest
from river.datasets import synth

from streamsvm import BSCAClassifier, BSGDClassifier, SVMClassifier

Pairs = list[tuple[dict[Any, Any], bool]]
CONCEPT = 4_000  # rows of a generated concept
RECENT = 50  # as in `DriftWatch`

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
#: What is done: a new model at once; or a challenger, which takes the model's place if it errs less. They are compared after so
#: many rows, over the second half of these.
REACTIONS: dict[str, tuple[int, ...]] = {
    "anew": (),
    "challenger 500": (500,),
    "challenger 1000": (1000,),
    "challenger 2000": (2000,),
    "challenger 250-2000": (250, 500, 1000, 2000),
}


def concepts(parts: Iterable[Iterable[Any]]) -> Pairs:
    return [(x, bool(y)) for part in parts for x, y in itertools.islice(iter(part), CONCEPT)]


def data(name: str, folder: Path, rows: slice, shuffled: bool = True, seed: int = 0) -> Pairs:
    arrays = load_file(name, folder)
    order = np.random.default_rng(seed).permutation(len(arrays["y"])) if shuffled else np.arange(len(arrays["y"]))
    order = order[rows]
    return list(zip(to_dict_rows(arrays["X"][order]), (arrays["y"][order] > 0).tolist(), strict=True))


def flipped(rows: Pairs, parts: int) -> Pairs:
    """The labels of every other part are turned round."""
    return [(x, y ^ (i // (len(rows) // parts) % 2 == 1)) for i, (x, y) in enumerate(rows)]


def streams(half: str, folder: Path) -> dict[str, Callable[[], Pairs]]:
    first = slice(12_000)
    if half == "A":
        rbf = {"seed_model": 0, "seed_sample": 0, "n_centroids": 20, "change_speed": 0.001, "n_drift_centroids": 10}
        return {
            "sea": lambda: concepts(synth.SEA(v, noise=0.1, seed=v) for v in range(4)),
            "agrawal": lambda: concepts(synth.Agrawal(f, seed=f, perturbation=0.05) for f in (0, 3, 6, 8)),
            "elec2, first": lambda: data("elec2", folder, slice(16_000), shuffled=False),
            "magic04, flipped": lambda: flipped(data("magic04", folder, first), 3),
            "skin, flipped": lambda: flipped(data("skin", folder, first), 4),
            "magic04": lambda: data("magic04", folder, first, seed=1),
            "rbf, slow": lambda: list(itertools.islice(synth.RandomRBFDrift(**rbf), 12_000)),
        }
    hyperplane = {"seed": 0, "n_drift_features": 2, "mag_change": 0.001, "noise_percentage": 0.05}
    return {
        "stagger": lambda: concepts(synth.STAGGER(f, seed=f) for f in range(3)),
        "sine": lambda: concepts(synth.Sine(f, seed=f) for f in range(4)),
        "elec2, last": lambda: data("elec2", folder, slice(28_000, 44_000), shuffled=False),
        "phishing, flipped": lambda: flipped(data("phishing", folder, slice(10_500)), 3),
        "ijcnn1, flipped": lambda: flipped(data("ijcnn1", folder, first, shuffled=False), 3),
        "a9a": lambda: data("a9a", folder, first),
        "magic04, skin, magic04": lambda: (
            data("magic04", folder, slice(5_000))
            + data("skin", folder, slice(5_000))
            + data("magic04", folder, slice(5_000, 10_000))
        ),
        "hyperplane, slow": lambda: list(itertools.islice(synth.Hyperplane(**hyperplane), 12_000)),
    }


# Recovery -------------------------------------------------------------------------------------------------------------

LASTS, CONCEPTS = 1_500, 3  # rows of a concept, and concepts of a stream
AT_LEVEL, AGAIN = 500, 250  # the last rows of a concept, whose accuracy is the level; rows that are compared with it
RECOVERING: dict[str, Callable[[], Any]] = {
    "SVMClassifier": LEARNERS["auto"],
    "BSCAClassifier": lambda: BSCAClassifier(seed=0),
    "BSGDClassifier": lambda: BSGDClassifier(seed=0),
    "ARFClassifier": lambda: forest.ARFClassifier(seed=0),
    "SRPClassifier": lambda: ensemble.SRPClassifier(n_models=10, seed=0),
}
#: The concept number i of a stream.
CHANGING: dict[str, Callable[[int], Any]] = {
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


def recovery(make: Callable[[], Any], concept: Callable[[int], Any]) -> dict[str, float]:
    """A level in percent, the rows until a learner is within a point of it again, and its errors beyond it; means of changes."""
    model, right = make(), np.zeros((CONCEPTS, LASTS))
    for i in range(CONCEPTS):
        for row, (x, y) in enumerate(concept(i).take(LASTS)):
            right[i, row] = model.predict_one(x) == y
            model.learn_one(x, y)
    after = right[1:].mean(axis=0)  # the first concept changes from nothing
    level = float(after[-AT_LEVEL:].mean())
    following = np.convolve(after, np.full(AGAIN, 1.0 / AGAIN), "valid")
    rows = int(np.argmax(following >= level - 0.01))  # some of the last rows are as good as their mean
    return {"level": 100.0 * level, "rows": rows, "errors": float((level - after[:-AT_LEVEL]).sum())}


def recoveries(out: Path) -> None:
    """Measure and print recoveries of all learners on all streams."""
    results: dict[str, dict[str, Any]] = {}
    for name, concept in CHANGING.items():
        results[name] = {learner: recovery(make, concept) for learner, make in RECOVERING.items()}
        report_progress(f"{name}: {results[name]}")
    for what, form in (("level", ".1f"), ("rows", ".0f"), ("errors", ".0f")):
        table = [[name, *(format(found[learner][what], form) for learner in RECOVERING)] for name, found in results.items()]
        means = (statistics.fmean(found[learner][what] for found in results.values()) for learner in RECOVERING)
        print_table(
            f"After a change: {what}", ["stream", *RECOVERING], [*table, ["mean", *(format(mean, form) for mean in means)]]
        )
    write_results(out, {"recovery": results})


class Watched:
    """A model with a detector beside it, as `DriftWatch` has it, and perhaps a challenger."""

    def __init__(self, make: Callable[[], Any], detector: Any, trials: tuple[int, ...]) -> None:
        self._make, self._detector, self._trials = make, detector, trials
        self._model, self._challenger = make(), None
        self._errors: tuple[list[bool], list[bool]] = ([], [])  # of both, since the challenger began
        self._since: list[bool] = []
        self._recent = 0.0
        self.drifts = self.replaced = 0

    def step(self, x: Any, y: Any) -> bool:
        """Predict and learn a row; whether the prediction was wrong."""
        wrong = self._model.predict_one(x) not in (y, None)
        self._model.learn_one(x, y)
        if self._challenger is not None:
            self._errors[0].append(wrong)
            self._errors[1].append(self._challenger.predict_one(x) != y)
            self._challenger.learn_one(x, y)
            self._compare(len(self._errors[0]))
        if self._detector is not None:
            self._look(wrong)
        return wrong

    def _compare(self, rows: int) -> None:
        if rows not in self._trials:
            return
        old, new = (sum(errors[rows // 2 :]) for errors in self._errors)
        last = rows == self._trials[-1]
        if new < old - (0.0 if last else (old + new) ** 0.5):  # before the last comparison, clearly
            self._model, self.replaced, last = self._challenger, self.replaced + 1, True
        if last:
            self._challenger = None

    def _look(self, wrong: bool) -> None:
        self._detector.update(int(wrong))
        self._since.append(wrong)
        self._recent += (wrong - self._recent) / min(len(self._since), RECENT)
        if not self._detector.drift_detected:
            return
        worse = self._recent > statistics.fmean(self._since)
        self._since = []
        self.drifts += worse
        if worse and not self._trials:
            self._model, self.replaced = self._make(), self.replaced + 1
        elif worse and self._challenger is None:
            self._challenger, self._errors = self._make(), ([], [])


def accuracy(watched: Watched, rows: Pairs) -> float:
    return 100.0 * (1.0 - sum(watched.step(x, y) for x, y in rows) / len(rows))


def main() -> None:
    parser = make_parser(__doc__, "drift")
    parser.add_argument("--learners", nargs="*", choices=LEARNERS, default=list(LEARNERS))
    parser.add_argument("--detectors", nargs="*", choices=DETECTORS, default=list(DETECTORS))
    parser.add_argument("--reactions", nargs="*", choices=REACTIONS, default=list(REACTIONS))
    parser.add_argument("--recovery", action="store_true", help="only: how soon learners recover from changes")
    options = parser.parse_args()
    if options.recovery:
        recoveries(options.out)
        return
    results: dict[str, Any] = {}
    for half, learner in itertools.product("AB", options.learners):
        for name, make in streams(half, options.data).items():
            rows = make()
            base = accuracy(Watched(LEARNERS[learner], None, ()), rows)
            for detector, reaction in itertools.product(options.detectors, options.reactions):
                watched = Watched(LEARNERS[learner], DETECTORS[detector](), REACTIONS[reaction])
                gain = accuracy(watched, rows) - base
                found = {"base": base, "gain": gain, "drifts": watched.drifts, "replaced": watched.replaced}
                results[" | ".join((half, learner, name, detector, reaction))] = found
            report_progress(f"{half}: {name}, {learner}: {base:.2f} %")
    for half, kind in itertools.product("AB", ("auto", "budgeted")):
        table = []
        for detector, reaction in itertools.product(options.detectors, options.reactions):
            found = []
            for key, result in results.items():
                of, learner, _, *how = key.split(" | ")
                if of == half and how == [detector, reaction] and (learner == "auto") == (kind == "auto"):
                    found.append(result)
            if found:
                gains = [each["gain"] for each in found]
                counts = [sum(each[name] for each in found) for name in ("drifts", "replaced")]
                ends = (f"{value:+.2f}" for value in (statistics.fmean(gains), min(gains), max(gains)))
                table.append([f"{detector}, {reaction}", *ends, len(gains), *counts])
        if table:
            print_table(
                f"Half {half}, {kind}", ["detector, reaction", "mean", "worst", "best", "runs", "drifts", "replaced"], table
            )
    write_results(options.out, {"results": results})


if __name__ == "__main__":
    main()
