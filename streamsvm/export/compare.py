"""Compares the predictions of two programs, such as those of a model before and after quantisation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from streamsvm.edge.predictor import Predictor
from streamsvm.edge.program import Program
from streamsvm.export.convert import make_program

_MAX_CHANGED_LABELS = 0.01  # share of the rows
#: Maximum root mean square difference of numbers, in standard deviations. If a good model has errors of 30 % of the standard
#: deviation, they grow by 0.5 %.
_MAX_RELATIVE_RMSE = 0.03


class Comparison(NamedTuple):
    """The differences between the predictions of two programs."""

    n_rows: int
    """Number of rows that were compared."""
    n_changed_labels: int | None
    """Number of rows with a different label; None if the programs do not predict labels."""
    max_difference: float
    """Largest absolute difference of probabilities, or else of decision values; of numbers; or of anomaly scores."""
    quantity: str
    """The quantity of `max_difference`, in the plural, such as ``"probabilities"``."""
    relative_rmse: float | None
    """Root mean square difference of numbers or anomaly scores, in standard deviations of the first's; None for labels."""

    @property
    def is_large(self) -> bool:
        """Whether the two compared models differ too much: more than 1 % of the rows have another label, or the predicted numbers
        differ by more than 3 % of their standard deviation (root mean square).
        """
        if self.n_changed_labels is not None:
            return self.n_changed_labels > _MAX_CHANGED_LABELS * self.n_rows
        return self.relative_rmse is not None and self.relative_rmse > _MAX_RELATIVE_RMSE

    @property
    def warning(self) -> str:
        """A short phrase for a warning that the predictions of the two compared models differ too much; it contains the limit
        that is exceeded, such as ``over 1% of labels differ``.
        """
        if self.n_changed_labels is not None:
            return f"over {100.0 * _MAX_CHANGED_LABELS:g}% of labels differ"
        return f"{self.quantity} differ by more than {100.0 * _MAX_RELATIVE_RMSE:g}% of their deviation"

    def __str__(self) -> str:
        if self.n_changed_labels is None:
            percent = "" if self.relative_rmse is None else f", and by {100.0 * self.relative_rmse:.2g}% of their deviation"
            percent += " (root mean square)" * bool(percent)
            return f"{self.quantity} differ by at most {self.max_difference:.3g}{percent}, on {self.n_rows:,} rows"
        percent = f"{100.0 * self.n_changed_labels / max(self.n_rows, 1):.2g}%"
        labels = f"{self.n_changed_labels:,} of {self.n_rows:,} rows ({percent}) have another label"
        return f"{labels}; {self.quantity} differ by at most {self.max_difference:.3g}"


def compare_programs(program: Any, other: Any, X: Any, *, single: bool = False) -> Comparison:
    """Compare the predictions of two models, or two programs (exported models as lists of numpy operations), on the rows X. With
    ``single``, the ``other`` model gets rows rounded to float32. Returns counts and sizes of the differences, for example to
    judge the loss from quantisation.

    Exported C predicts as numpy does, except for its rounding to float32.

    Parameters
    ----------
    program
        A model, or its program from `make_program`.
    other
        A program made from it, such as by `quantise_program` or `reduce_program`, or another model of the same labels.
    X
        Rows, an array [n, columns] in the order of the columns of a program, or a frame with columns of these names.
    single
        Whether to round the rows to float32 for the other program, because C takes rows in float32.

    Returns
    -------
    Comparison

    Raises
    ------
    ValueError
        X has no rows, another number of columns, or a value that is not a number; or the programs have different labels.

    Notes
    -----
    O(n) predictions of each program.

    Examples
    --------
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.export.convert import make_program
    >>> from streamsvm.export.quantise import quantise_program
    >>> model = BSGDClassifier(budget=10)
    >>> for value in range(20):
    ...     model.learn_one({"a": value}, value > 9)
    >>> program = make_program(model)
    >>> comparison = compare_programs(program, quantise_program(program, bits=16), [[0.0], [7.5], [19.0]])
    >>> comparison.n_rows, comparison.n_changed_labels, comparison.quantity, comparison.is_large
    (3, 0, 'probabilities', False)
    """
    program, other = (model if isinstance(model, Program) else make_program(model) for model in (program, other))
    if (program.answer.kind, program.answer.labels) != (other.answer.kind, other.answer.labels):
        raise ValueError("programs can only be compared if both predict numbers, or the same labels")
    predictors = Predictor(program), Predictor(other)
    rows = predictors[0]._read_matrix(X)
    if not len(rows):
        raise ValueError("there are no rows to compare programs on: X must have at least one")
    with np.errstate(over="ignore"):
        inputs = rows, rows.astype(np.float32).astype(np.float64) if single else rows
    before, after = (predictor.predict_many(part) for predictor, part in zip(predictors, inputs, strict=True))
    if program.answer.kind != "class":
        deviation = float(before.std())
        relative_rmse = float(np.sqrt(np.square(after - before).mean())) / deviation if deviation > 0.0 else None
        quantity = "anomaly scores" if program.answer.kind == "anomaly" else "numbers"
        return Comparison(len(rows), None, float(np.abs(after - before).max()), quantity, relative_rmse)
    quantity = "probabilities" if program.answer.calibration else "decision values"
    method = "predict_proba_many" if program.answer.calibration else "decision_function_many"
    values = [getattr(predictor, method)(part) for predictor, part in zip(predictors, inputs, strict=True)]
    return Comparison(len(rows), int((before != after).sum()), float(np.abs(values[1] - values[0]).max()), quantity, None)
