"""A detector of drift that watches the errors of a stream's predictions."""

from __future__ import annotations

import copy
import logging
from typing import Any, get_args

from river import base

from streamsvm.core.checks import LARGEST_FLOAT32, OnDrift
from streamsvm.core.saved import Resumable
from streamsvm.files.messages import short_repr
from streamsvm.stream.logs import event

logger: logging.Logger = logging.getLogger(__name__)

_LONGEST = 200  # characters of what a checkpoint says of its detector
_RECENT = 50  # errors of about which the recent mean is


class DriftWatch(Resumable):
    """Watches the errors of a stream's predictions for drift, with a detector of river.

    Pass it to a `LearningLoop`. The error of each scored prediction goes into the detector. It is 0 or 1 for a label. For a
    number, it is the absolute error, at most float32's largest number, which also stands for an infinite prediction and for
    NaN. Detectors also report errors that became fewer, as happens while a model learns. Those are not drifts here, and are
    ignored.

    Parameters
    ----------
    detector
        River detector that has not seen any value yet, such as ``river.drift.ADWIN()``. Those of ``river.drift.binary`` are for
        labels.
    on_drift
        What the loop does about a drift. ``"count"`` counts and logs it, and the model continues to follow it by learning.
        ``"reset"`` also begins a new model, a clone that has learned nothing. This pays for learners that do not forget by
        themselves if drifts are abrupt. With ADWIN, BSGD of 100 and 500 support vectors gained 1.0 points over 15 streams of
        10,000 to 16,000 rows, and up to 3.6 where labels were flipped; BSCA, which forgets, gained .2, and `SVMClassifier` .1.
        False alarms cost .4 points at most. Other detectors have more of them: ``benchmarks/drift.py``.

    Attributes
    ----------
    drifts : int
        Number of drifts so far, including earlier runs.
    due : bool
        Whether the loop has to begin a new model.

    Raises
    ------
    ValueError
        The detector is not one of river, draws at random without a seed, or cannot be fed; or ``on_drift`` is another word.

    Examples
    --------
    >>> from river import drift
    >>> from river.datasets import synth
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.stream import IterableSource, LearningLoop
    >>> rows = [(x, y ^ (i >= 2000)) for i, (x, y) in enumerate(synth.Sine(seed=1).take(4000))]
    >>> watch = DriftWatch(drift.ADWIN())
    >>> _ = LearningLoop(IterableSource(rows), BSGDClassifier(budget=50), drift=watch).run()
    >>> watch.drifts
    1
    """

    _saved_attributes = ("description", "drifts", "_sum", "_count", "_recent")

    def __init__(self, detector: Any, on_drift: OnDrift = "count") -> None:
        if on_drift not in get_args(OnDrift):
            raise ValueError(f"on_drift must be 'count' or 'reset', not {on_drift!r}")
        if isinstance(detector, type) or not isinstance(detector, base.base.Base) or not hasattr(detector, "drift_detected"):
            raise ValueError(f"the detector must be one of river, such as river.drift.ADWIN(), not {short_repr(detector)}")
        if getattr(detector, "seed", 0) is None:
            raise ValueError(f"{type(detector).__name__} draws at random: give it a seed, so that a run can be repeated")
        self.detector: Any = detector
        self._binary = isinstance(detector, base.BinaryDriftDetector)  # for errors that are 0 or 1
        self.resets_model: bool = on_drift == "reset"
        #: The detector and its parameters, taken before the first row, for some count in their parameters.
        self.description: str = f"{type(detector).__name__}({', '.join(f'{k}={v!r}' for k, v in detector._get_params().items())})"
        self._new = copy.deepcopy(detector)
        try:
            _feed_a_copy(detector)
        except Exception as error:  # noqa: BLE001 - river takes parameters as they are, until it computes with them
            raise ValueError(f"{self.description} cannot be fed: {error}") from None
        self.drifts: int = 0
        self.is_reset_due: bool = False
        self._name, self._regression = "", False
        # Since the last time that the detector told of something: errors, and how many; and their recent mean.
        self._sum, self._count, self._recent = 0.0, 0, 0.0

    def start(self, model: Any, regression: bool, name: str) -> None:
        """Begin to watch a model over the stream of this name.

        A ValueError says that the detector is for labels and the model predicts numbers (``regression``), or the model cannot be
        cloned.
        """
        if self._binary and regression:
            raise ValueError(f"{self.description} is for errors of labels, and the model predicts numbers: try ADWIN")
        if self.resets_model and not hasattr(model, "clone"):
            raise ValueError(f"a clone of the model is begun after a drift, and {type(model).__name__} has no clone()")
        self._name, self._regression = name, regression

    def update(self, y: Any, predicted: Any, row: int) -> None:
        """Count the error of a prediction of the true label or target ``y``, after ``row`` rows.

        None, from a model that does not predict yet, is not counted.
        """
        if predicted is None:
            return
        error = abs(float(y - predicted)) if self._regression else float(predicted != y)
        if not error <= LARGEST_FLOAT32:  # also NaN: no detector, and no checkpoint, could go on with it
            error = LARGEST_FLOAT32
        try:
            self.detector.update(int(error) if self._binary else error)
            is_drift = self.detector.drift_detected
        except (ArithmeticError, TypeError, ValueError) as failure:  # rounding may lead to the root of a negative number
            logger.warning("%s, row %d: %s fails (%s) and begins anew", self._name, row, self.description, failure)
            self.detector, is_drift = copy.deepcopy(self._new), False
        self._sum += error
        self._count += 1
        self._recent += (error - self._recent) / min(self._count, _RECENT)
        if not is_drift:
            return
        mean = self._sum / self._count
        if self._recent > mean:
            self.drifts += 1
            self.is_reset_due = self.resets_model
            fields = event(
                "drift",
                source=self._name,
                row=row,
                drifts=self.drifts,
                recent_error=self._recent,
                error=mean,
                reset=self.resets_model,
            )
            logger.warning(
                "%s, row %d: drift: the error was %.4g, and is %.4g of late%s",
                self._name,
                row,
                mean,
                self._recent,
                ". A new model begins" if self.resets_model else "",
                extra=fields,
            )
        self._sum, self._count, self._recent = 0.0, 0, 0.0

    def restore(self, state: Any, detector: Any) -> None:
        """Continue from a saved `state` and its detector; ValueError if they are of another detector, or corrupt."""
        if isinstance(state, dict) and (before := str(state.get("description"))) != self.description:
            raise ValueError(f"drift was watched by {before[:_LONGEST]}, not {self.description}: ask for the same")
        if type(detector) is not type(self.detector) or vars(detector).keys() != vars(self.detector).keys():
            raise ValueError(f"the checkpoint's detector is {short_repr(detector)}, not {self.description}")
        try:
            _feed_a_copy(detector)
        except BaseException as error:  # whatever a corrupt state leads to: a panic of Rust is not an Exception
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise ValueError(f"the checkpoint's detector is corrupt: {error}") from None
        self.resume(state)
        self.detector = detector


def _feed_a_copy(detector: Any) -> None:
    tried = copy.deepcopy(detector)
    for error in (0, 1, 0):
        tried.update(error)
        bool(tried.drift_detected)
