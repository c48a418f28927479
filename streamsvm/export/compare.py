"""Compares the answers of a program that was made smaller with those of the original one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from streamsvm.edge.predictor import Predictor
from streamsvm.edge.program import Program
from streamsvm.export.convert import make_program

_MOST_CHANGED = 0.01  # of the labels
#: Of numbers, in their deviations, root mean square. Errors of 30 % of the deviation, those of a good model, grow by 0.5 %.
_MOST_AWAY = 0.03


class Comparison(NamedTuple):
    """How the answers of two programs differ."""

    n_rows: int
    """Number of the rows that were compared."""
    n_changed_labels: int | None
    """Number of the rows with another label; None of programs without labels."""
    max_difference: float
    """Largest difference: of a probability, of a decision value where there are none, of a number, or of an anomaly score."""
    quantity: str
    """The kind of values that differ so much, in the plural, such as ``"probabilities"``."""
    relative_rmse: float | None
    """Of numbers and scores, the root mean square difference, in deviations of those of the first program; None of labels."""

    @property
    def is_large(self) -> bool:
        """Whether more than 1 % of the labels differ, or numbers by more than 3 % of their deviation."""
        if self.n_changed_labels is not None:
            return self.n_changed_labels > _MOST_CHANGED * self.n_rows
        return self.relative_rmse is not None and self.relative_rmse > _MOST_AWAY

    @property
    def warning(self) -> str:
        """The limit beyond which differences are large, as a sentence that says that they are."""
        if self.n_changed_labels is not None:
            return f"over {100.0 * _MOST_CHANGED:g}% of labels differ"
        return f"{self.quantity} differ by more than {100.0 * _MOST_AWAY:g}% of their deviation"

    def __str__(self) -> str:
        if self.n_changed_labels is None:
            percent = "" if self.relative_rmse is None else f", and by {100.0 * self.relative_rmse:.2g}% of their deviation"
            percent += " (root mean square)" * bool(percent)
            return f"{self.quantity} differ by at most {self.max_difference:.3g}{percent}, on {self.n_rows:,} rows"
        percent = f"{100.0 * self.n_changed_labels / max(self.n_rows, 1):.2g}%"
        labels = f"{self.n_changed_labels:,} of {self.n_rows:,} rows ({percent}) have another label"
        return f"{labels}; {self.quantity} differ by at most {self.max_difference:.3g}"


def compare_programs(program: Any, other: Any, X: Any, *, single: bool = False) -> Comparison:
    """Compare the answers of two programs on rows, both computed by numpy.

    Code in C answers as numpy does, but for rounding to float32 while it computes.

    Parameters
    ----------
    program
        A model, or its program from `make_program`.
    other
        What was made of it, such as by `quantise_program` or `reduce_program`, or another model of the same labels.
    X
        Rows, an array [n, columns] in the order of the columns of a program, or a frame with columns of these names.
    single
        Whether the other program is given the rows in float32, as C takes them.

    Returns
    -------
    Comparison

    Raises
    ------
    ValueError
        X has no rows or another number of columns, or holds something that is not a number; or the two have other labels.

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
    >>> found = compare_programs(program, quantise_program(program, bits=16), [[0.0], [7.5], [19.0]])
    >>> found.n_rows, found.n_changed_labels, found.quantity, found.is_large
    (3, 0, 'probabilities', False)
    """
    program, other = (some if isinstance(some, Program) else make_program(some) for some in (program, other))
    if (program.answer.kind, program.answer.labels) != (other.answer.kind, other.answer.labels):
        raise ValueError("there is no comparison of programs with other labels, or of labels with numbers")
    before, after = Predictor(program), Predictor(other)
    rows = before._read_matrix(X)
    if not len(rows):
        raise ValueError("there are no rows to compare programs on: give at least one")
    with np.errstate(over="ignore"):
        given = rows.astype(np.float32).astype(np.float64) if single else rows
    answers, others = before.predict_many(rows), after.predict_many(given)
    if before.kind != "class":
        spread = float(answers.std())
        away = float(np.sqrt(np.square(others - answers).mean())) / spread if spread > 0.0 else None
        unit = "anomaly scores" if before.kind == "anomaly" else "numbers"
        return Comparison(len(rows), None, float(np.abs(others - answers).max()), unit, away)
    asked = (each.predict_proba_many if program.answer.calibration else each.decision_function_many for each in (before, after))
    values = [ask(some) for ask, some in zip(asked, (rows, given), strict=True)]
    unit = "probabilities" if program.answer.calibration else "decision values"
    return Comparison(len(rows), int((answers != others).sum()), float(np.abs(values[1] - values[0]).max()), unit, None)
