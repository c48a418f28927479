"""Watches the prediction errors of a stream for concept drift."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping
from typing import Any, get_args

from river import base

from streamsvm.core.checks import LARGEST_FLOAT32, OnDrift, check_number
from streamsvm.core.saved import Resumable
from streamsvm.files.messages import short_repr
from streamsvm.stream.logs import event

logger: logging.Logger = logging.getLogger(__name__)

_RECENT_ERRORS = 50  # the recent error is an exponential mean with about this many errors


class DriftWatch(Resumable):
    """Watches the prediction errors of a stream for concept drift, with a detector of river.

    Pass it to a `LearningLoop`. The error of each scored prediction goes into the detector. It is 0 or 1 for a label. For a
    number, it is the absolute error. Larger errors than float32 can hold, infinite predictions and NaN count as the largest
    float32 number. Detectors also report that errors have decreased, as happens while a model learns. That is not counted.

    Parameters
    ----------
    detector
        River detector that has not seen any value yet, such as ``river.drift.ADWIN()``. Detectors of ``river.drift.binary`` are
        for labels.
    on_drift
        How the loop reacts to a drift. ``"count"`` counts and logs it, and the model adapts by learning. ``"reset"`` also
        replaces the model by a new one, a clone that has learned nothing. This helps learners that do not forget by themselves,
        if drifts are abrupt. With ADWIN, BSGD of 100 and 500 support vectors gained 1.0 points over 15 streams of
        10,000 to 16,000 rows, and up to 3.6 where labels were flipped; BSCA, which forgets, gained .2, and `SVMClassifier` .1.
        False alarms cost .4 points at most. Other detectors have more of them: ``benchmarks/drift.py``.

    Attributes
    ----------
    drifts : int
        Number of drifts so far, including earlier runs.
    due : bool
        Whether the loop has to replace the model by a new one.

    Raises
    ------
    ValueError
        The detector is not one of river, is random without a seed, or fails; or ``on_drift`` is unknown.

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
        if type(detector).__module__.partition(".")[0] == "river":  # which does not validate parameters
            _check_parameters(type(detector).__name__, detector._get_params())
        self.detector: Any = detector
        self._binary = isinstance(detector, base.BinaryDriftDetector)  # takes only errors of 0 and 1
        self.resets_model: bool = on_drift == "reset"
        #: The detector and its parameters before the first row, because some detectors change their parameters.
        self.description: str = f"{type(detector).__name__}({', '.join(f'{k}={v!r}' for k, v in detector._get_params().items())})"
        self._unused_detector = copy.deepcopy(detector)
        try:
            _try_detector(detector)
        except Exception as error:  # noqa: BLE001 - of the detector
            raise ValueError(f"{self.description} cannot be fed: {error}") from None
        self.drifts: int = 0
        self.is_reset_due: bool = False
        self._name, self._regression = "", False
        # The sum, number and recent mean of the errors since the last change that the detector reported.
        self._sum, self._count, self._recent = 0.0, 0, 0.0

    def start(self, model: Any, regression: bool, name: str) -> None:
        """Begin to watch a model for concept drift. ``regression`` says whether it predicts numbers, and ``name`` is the stream
        in messages. Raise a ValueError if the detector is for labels and the model predicts numbers, or if the model must be
        reset after a drift and has no ``clone``.
        """
        if self._binary and regression:
            raise ValueError(f"{self.description} is for errors of labels, and the model predicts numbers: try ADWIN")
        if self.resets_model and not hasattr(model, "clone"):
            raise ValueError(f"the model is replaced by a clone after a drift, and {type(model).__name__} has no clone()")
        self._name, self._regression = name, regression

    def update(self, y: Any, predicted: Any, row: int) -> None:
        """Add the error of a prediction, compared with the true label or target ``y``, to the drift detector. ``row`` is the
        number of rows before it. If the detector reports a drift, and recent errors are above their mean, count and log
        the drift.

        A prediction of None, from a model that does not predict yet, is ignored.
        """
        if predicted is None:
            return
        error = abs(float(y - predicted)) if self._regression else float(predicted != y)
        if not error <= LARGEST_FLOAT32:  # also NaN, which would spoil the detector
            error = LARGEST_FLOAT32
        try:
            self.detector.update(int(error) if self._binary else error)
            is_drift = self.detector.drift_detected
        except (ArithmeticError, TypeError, ValueError) as failure:  # such as the root of a number that is negative by rounding
            logger.warning("%s, row %d: %s fails (%s) and is reset", self._name, row, self.description, failure)
            self.detector, is_drift = copy.deepcopy(self._unused_detector), False
        self._sum += error
        self._count += 1
        self._recent += (error - self._recent) / min(self._count, _RECENT_ERRORS)
        if not is_drift:
            return
        mean = self._sum / self._count
        if self._recent > mean:
            self.drifts += 1
            self.is_reset_due = self.resets_model
            errors = {"recent_error": self._recent, "error": mean}
            fields = event("drift", source=self._name, row=row, drifts=self.drifts, **errors, reset=self.resets_model)
            digits = next(n for n in range(4, 18) if f"{mean:.{n}g}" != f"{self._recent:.{n}g}")
            text = f"drift: the error was {mean:.{digits}g}, and is {self._recent:.{digits}g} of late"
            logger.warning("%s, row %d: %s%s", self._name, row, text, ". A new model begins" * self.resets_model, extra=fields)
        self._sum, self._count, self._recent = 0.0, 0, 0.0

    def restore(self, state: Any, detector: Any) -> None:
        """Continue from a saved `state` and the saved river detector. Raise a ValueError if one is corrupt, or is of another kind
        of detector than this one.
        """
        if type(detector) is not type(self.detector) or vars(detector).keys() != vars(self.detector).keys():
            raise ValueError(f"the checkpoint's detector is {short_repr(detector)}, not {self.description}")
        try:
            _try_detector(detector)
        except BaseException as error:  # a panic of river's Rust code is not an Exception
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise ValueError(f"the checkpoint's detector is corrupt: {error}") from None
        self.resume(state)
        self.detector = detector


def _check_parameters(name: str, parameters: Mapping[str, Any]) -> None:
    """Raise a ValueError if a numeric parameter of river's detector ``name`` is out of range."""
    for parameter, value in parameters.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            is_probability = "confidence" in parameter or (name, parameter) == ("ADWIN", "delta")
            is_positive, high = is_probability or parameter in ("clock", "max_buckets"), 1.0 if is_probability else math.inf
            check_number(f"{parameter} of {name}", value, 0.0, inclusive=not is_positive, high=high)


def _try_detector(detector: Any) -> None:
    """Update a copy of a drift detector with three errors, so that an unusable detector raises its exception immediately."""
    detector = copy.deepcopy(detector)
    for error in (0, 1, 0):
        detector.update(error)
        bool(detector.drift_detected)
