"""Budgeted stochastic coordinate ascent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from streamsvm.core.budget import Removal, Strategy
from streamsvm.core.checks import parameter
from streamsvm.learners.classifier import BudgetedClassifier
from streamsvm.learners.dual_ascent import DualAscent
from streamsvm.learners.estimator import learner
from streamsvm.learners.labels import MAX_CLASSES
from streamsvm.learners.merging import MergeableExpansion
from streamsvm.learners.regressor import EpsilonInsensitiveRegressor


@learner
class BSCAClassifier(BudgetedClassifier, DualAscent, MergeableExpansion):
    """A kernel SVM that learns row by row in the dual, within a budget of support vectors.

    It maximises the dual objective of a support vector machine by coordinate ascent, with one coordinate for each row. A row
    inside the margin becomes a support vector. Its coefficient, at most C, is the one that moves the row onto the margin, so
    there is no learning rate. When there is one support vector too many, two are merged into one. Memory is allocated when the
    model is made, and grows with new labels alone.

    Notes
    -----
    A row costs O(B d) for d features. A row inside the margin costs three times as much, plus B table look-ups.

    In a single pass, a row is stepped once: a step that is too long is not taken back, and one that is too short is not
    repeated. With ``averaging``, two limits make up for this. First, no row moves its own decision value by more than 2. This
    limit falls, to .1 at the least, as the average iterate errs less than the last one, which is a sign that steps follow
    noise. Second, as long as C times the number of rows so far is below 3,000, it counts as 3,000. With these limits, over
    10,000 rows any C from .01 to 1000 is within .2 points of the best accuracy on average over 17 streams, and within 2 points
    on each. Neither limit applies to `learn_epochs`, whose passes reach the solution for C, or with ``averaging=0``.

    Steps only add to the model, so that what it has learned of a concept that is over would stay until it is merged away. With
    ``averaging``, the model therefore watches the share of its errors, and where that of the last 50 rows or so is above that of
    the last 500 by more than chance, it halves all coefficients and begins to average anew. What is left over is a start, and
    gives way as rows contradict it. Rows of a weight other than 1, as class weights make them, do not count in this share. On
    streams that drift this gains 2 points of accuracy in the mean. It costs 3.5 where what is new appears beside what still
    holds, as do the fields of chess, and up to as much where wrong labels come in bursts of ten to forty rows, which look alike.

    References
    ----------
    [^1]: Qaadan, S., Schueler, M., Glasmachers, T. (2019). Dual SVM training on a budget. ICPRAM. Algorithm 2; it appends alpha
        where alpha y is meant.
    [^2]: Bordes, A., Ertekin, S., Weston, J., Bottou, L. (2005). Fast kernel classifiers with online and active learning. JMLR
        6 (reprocessing).

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm import BSCAClassifier

    >>> model = preprocessing.StandardScaler() | BSCAClassifier(budget=100, seed=0)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 2)
    0.89
    """

    C: float = parameter(default=1.0, above=0.0, high=1e15)
    maintenance: Strategy | None = None
    averaging: int = 3000
    relaxation: float = parameter(default=1.5, above=0.0, high=2.0)
    reprocess: int = parameter(default=1, least=0, high=1000, integer=True)
    """How many random support vectors take another step after each new one. Such a step can only enlarge a coefficient. 0 turns
    it off.
    """
    tol: float = parameter(default=0.3, least=0.0, high=1e15)
    """By how much a row may miss the margin without being learned. A larger value means that fewer rows become support vectors,
    and fewer are merged. The algorithm of the paper has no such tolerance; it is ``relaxation=1.0, reprocess=0, tol=0.0,
    averaging=0``.
    """
    replay: int = parameter(default=0, least=0, high=2**31 - 1, integer=True)
    """The size of a window of the latest rows, from which the model learns rows again; 0 turns replay off. Replay takes time,
    and makes the model more accurate, but not on a stream that drifts. Each row of the window takes 24 bytes, and 4 more for
    each of ``max_features``.
    """
    replay_steps: int = parameter(default=1, least=1, high=1000, integer=True)
    """How many rows of that window, drawn at random, are learned again after each new row. They are learned as if they were
    new. Continuing from the coefficients that they had is less accurate, because most have been merged since.
    """
    max_classes: int = MAX_CLASSES
    seed: int | None = None

    @property
    def _max_new_vectors(self) -> int:  # type: ignore[override]
        return 1 + (self.replay_steps if self.replay else 0)

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 20}
        yield {"budget": 20, "kernel": "linear", "reprocess": 0}
        yield {"budget": 20, "maintenance": Removal("random"), "relaxation": 1.0}
        yield {"budget": 20, "replay": 50, "replay_steps": 2}
        yield {"budget": 20, "scaling": None}


@learner
class BSCARegressor(EpsilonInsensitiveRegressor, DualAscent, MergeableExpansion):
    """Kernel support vector regression that learns row by row in the dual, within a budget.

    A row whose prediction is off by more than ``epsilon`` becomes a support vector. Its coefficient, at most C, moves the
    prediction back towards the target, so there is no learning rate. When there is one support vector too many, two are merged
    into one. Where the stream drifts, it forgets as `BSCAClassifier` does: an error of 1 or more counts as a wrong label.

    Targets should be about 0, and about 1 in size: wrap the model in `streamsvm.learners.preprocessing.BoundedTargetScaler`.

    References
    ----------
    The dual of the epsilon-insensitive loss (Smola, A., Schoelkopf, B. (2004). A tutorial on support vector regression), by one
    coordinate a row as in Qaadan et al. (2019), algorithm 2. A row costs O(B d).

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from streamsvm import BSCARegressor
    >>> from streamsvm.learners.preprocessing import BoundedScaler, BoundedTargetScaler

    >>> model = BoundedScaler() | BoundedTargetScaler(BSCARegressor(budget=100))
    >>> round(evaluate.progressive_val_score(datasets.TrumpApproval(), model, metrics.MAE()).get(), 1)
    0.4
    """

    C: float = parameter(default=1.0, above=0.0, high=1e15)
    epsilon: float = parameter(default=0.1, least=0.0, high=1e15)
    maintenance: Strategy | None = None
    averaging: int = 3000
    relaxation: float = parameter(default=0.5, above=0.0, high=2.0)
    seed: int | None = None

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 20}
        yield {"budget": 20, "kernel": "poly", "coef0": 1.0, "relaxation": 1.5}
