"""The scores of a run: the first one is the score of the loop, and others are told beside it."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from streamsvm.files.river_metrics import metrics
from streamsvm.stream.checkpoint import CheckpointError
from streamsvm.stream.scores.base import Both, Columns, PositiveLabels, Score, ScoreReport, State, TableScore
from streamsvm.stream.scores.label_tables import ClassificationReport, ConfusionMatrix
from streamsvm.stream.scores.probability_scores import PROBABILITY_SCORES, Calibration, ProbabilityScore
from streamsvm.stream.scores.river_score import GUESSED, RiverScore, TargetGuesses

_MOST_SCORES = 20
#: The tables by name.
TABLES: dict[str, type[TableScore]] = {kind.__name__: kind for kind in (ConfusionMatrix, ClassificationReport, Calibration)}


class Scores:
    """The scores of a run.

    ``metric`` is a metric of river, a name, or several of these; None is accuracy, or for a ``regression`` MAE. Names are those
    of `PROBABILITY_SCORES`, `TABLES` and metrics of river without parameters. The first one is one number. ``positive`` is
    the positive label of those that have one, and ``multiclass`` says whether there may be more than two labels. A ValueError
    says which metric is none, or for the other kind of models.
    """

    def __init__(
        self, metric: Any, window: int, positive: Hashable = None, multiclass: bool = False, regression: bool = False
    ) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1, not {window}")
        if metric is None:
            metric = "MAE" if regression else "Accuracy"
        given = list(metric) if isinstance(metric, list | tuple) else [metric]
        if not 0 < len(given) <= _MOST_SCORES:
            raise ValueError(f"there must be from 1 to {_MOST_SCORES} metrics, not {len(given)}")
        self.all: list[Score] = [_score_of(each, window, positive, regression) for each in given]
        self.first: Score = self.all[0]
        names = [score.name for score in self.all]
        if self.first.table is not None:
            raise ValueError(f"{self.first.name} is a table: name a metric that is one number before it: Accuracy,{names[0]}")
        described = list(map(repr, self.all))
        if len(set(described)) < len(described):
            raise ValueError(f"{', '.join(names)}: a metric stands there twice")
        #: Whether a positive label can be named.
        self.may_be_binary: bool = any(score.may_be_binary for score in self.all)
        if positive is not None and not self.may_be_binary:
            treats = "treat" if len(names) > 1 else "treats"
            raise ValueError(f"{', '.join(names)} {treats} all labels alike, there is no positive one to name")
        binary = next((score for score in self.all if score.binary), None)
        #: Whether a label is the positive one, for a score at least: then labels must be admitted.
        self.binary: bool = binary is not None
        self._labels = PositiveLabels("" if binary is None else binary.name, positive, multiclass)
        self._guesses = TargetGuesses() if any(type(score.metric) in GUESSED for score in self.all) else None
        wanting = [score for score in self.all if not score.wants_labels]
        #: The name of a score that takes probabilities; "": none does.
        self.wants_probabilities: str = wanting[0].name if wanting else ""
        self._wants_labels = len(wanting) < len(self.all)

    def __repr__(self) -> str:
        """The scores, with parameters, window and positive label: equal for those that may continue each other."""
        return ", ".join(map(repr, self.all))

    def admit(self, y: Any) -> None:
        """Raise a ScoreError where a label cannot be counted; called where scores are `binary`, before `update`."""
        self._labels.admit(y)

    def admitted(self, labels: Iterable[Any]) -> None:
        """Know labels that were admitted in an earlier run."""
        if self.binary:
            self._labels.admitted(labels)

    def scored_of(self, label: Any, probabilities: Mapping[Any, float] | None) -> Any:
        """Return what `update` takes of the prediction of a row: its label, its probabilities, or both."""
        if not self.wants_probabilities:
            return label
        return Both(label, probabilities or {}) if self._wants_labels else probabilities

    def update(self, y: Any, predicted: Any) -> None:
        """Count a row: its label, and what `scored_of` has made of its prediction."""
        label, probabilities = predicted if type(predicted) is Both else (predicted, predicted)
        if self._guesses is not None and predicted is not None:
            self._guesses.update(y)
        for score in self.all:
            score.update(y, label if score.wants_labels else probabilities)

    def update_many(self, ys: Sequence[Any], labels: Sequence[Any], probabilities: Columns | None = None) -> None:
        """Count rows as `update` does one after the other, those without a label (None) left out."""
        if None in ys:
            labelled = [i for i, y in enumerate(ys) if y is not None]
            ys, labels = [ys[i] for i in labelled], [labels[i] for i in labelled]
            probabilities = {label: column[labelled] for label, column in (probabilities or {}).items()}
        if self._guesses is not None:
            for y, label in zip(ys, labels, strict=True):
                if label is not None:
                    self._guesses.update(y)
        for score in self.all:
            score.update_many(ys, labels if score.wants_labels else probabilities or {})

    @property
    def state(self) -> State:
        """The state of the first score."""
        return self.first.state

    @property
    def further(self) -> dict[str, Any]:
        """The state that a checkpoint saves beside it: that of the other scores, and of guesses."""
        guesses = None if self._guesses is None else self._guesses.state
        return {"scores": [score.state for score in self.all[1:]], "guesses": guesses}

    def resume(self, state: State, further: Any) -> None:
        """Go on from a saved `state` and what was saved beside it; None: it is of an earlier version, which saved nothing.

        CheckpointError if they are none of such scores.
        """
        self.first.resume(*state)
        corrupt = CheckpointError("the checkpoint's scores are not what was written: give another folder")
        if further is None:
            self._guesses = None  # those of earlier rows are not known
            return
        if type(further) is not dict or further.keys() != {"scores", "guesses"} or type(further["scores"]) is not list:
            raise corrupt
        states, guesses = further["scores"], further["guesses"]
        if len(states) != len(self.all) - 1 or not all(type(each) is tuple and len(each) == 3 for each in states):
            raise corrupt
        for score, each in zip(self.all[1:], states, strict=True):
            score.resume(*each)
        if guesses is None:
            self._guesses = None
        elif self._guesses is None:
            raise corrupt
        else:
            try:
                self._guesses.resume(guesses)
            except ValueError:
                raise corrupt from None

    def reports(self) -> tuple[ScoreReport, ...]:
        """Return what each score says."""
        found = []
        for score in self.all:
            values = (score.value, score.windowed_value) if score.counted else (math.nan, math.nan)
            guesses: tuple[tuple[str, float], ...] = ()
            if score.counted:
                guesses = score.guesses if self._guesses is None else self._guesses.of(score.metric)
            found.append(ScoreReport(score.name, *values, guesses, score.table))
        return tuple(found)

    @property
    def majority(self) -> tuple[Any, float] | None:
        """The commonest label and its share of the rows, which is the accuracy of always predicting it; None of other metrics."""
        return self.first.majority if isinstance(self.first, RiverScore) else None

    def advice(self, before: str) -> str:
        """Say how a run goes on that was scored with ``before``; "" where there is nothing to say."""
        name = self.first.name
        found = re.fullmatch(rf"{name}\((|n_thresholds=\d+, )window=.*\)", before)
        if found is None or not isinstance(self.first, ProbabilityScore):
            return ""
        call = f"{name}({found[1].rstrip(', ')})"
        return f". That was river's {name}, with which it goes on: --metric '{call}', or metric=river.metrics.{call}"


def _score_of(metric: Any, window: int, positive: Hashable, regression: bool) -> Score:
    """Return the score of a metric of river, or of a name."""
    if not isinstance(metric, str):
        return RiverScore(metric, window, positive, regression)
    if not regression and metric in PROBABILITY_SCORES:
        return PROBABILITY_SCORES[metric](window, positive)
    if not regression and metric in TABLES:
        return TABLES[metric](window)
    kind = getattr(metrics, metric, None)
    if not isinstance(kind, type) or not issubclass(kind, metrics.base.Metric):
        names = "MAE, RMSE or R2" if regression else "Accuracy, F1, ROCAUC, AveragePrecision, LogLoss or BrierScore"
        raise ValueError(f"{metric!r} is not the name of a metric; try {names}")
    try:
        made = kind()
    except TypeError as error:
        raise ValueError(f"{metric} needs parameters: give river's metrics.{metric}(...) ({error})") from None
    return RiverScore(made, window, positive, regression)
