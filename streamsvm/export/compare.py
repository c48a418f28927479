"""Compares the answers of a program that was made smaller with those of the original one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from streamsvm.edge.predictor import Predictor
from streamsvm.edge.program import Program
from streamsvm.export.describe import program_of

_MOST_CHANGED = 0.01  # of the labels
#: Of numbers, in their deviations, root mean square. Errors of 30 % of the deviation, those of a good model, grow by 0.5 %.
_MOST_AWAY = 0.03


class Comparison(NamedTuple):
    """How the answers of two programs differ."""

    rows: int
    """Number of the rows that were compared."""
    changed: int | None
    """Number of the rows with another label; None of programs without labels."""
    largest: float
    """Largest difference: of a probability, of a decision value where there are none, of a number, or of an anomaly score."""
    unit: str
    """The kind of values that differ so much, in the plural, such as ``"probabilities"``."""
    away: float | None
    """Of numbers and scores, the root mean square difference, in deviations of those of the first program; None of labels."""

    @property
    def is_large(self) -> bool:
        """Whether more than 1 % of the labels differ, or numbers by more than 3 % of their deviation."""
        if self.changed is not None:
            return self.changed > _MOST_CHANGED * self.rows
        return self.away is not None and self.away > _MOST_AWAY

    @property
    def limit(self) -> str:
        """The limit beyond which differences are large, as a sentence that says that they are."""
        if self.changed is not None:
            return f"over {100.0 * _MOST_CHANGED:g}% of labels differ"
        return f"{self.unit} differ by more than {100.0 * _MOST_AWAY:g}% of their deviation"

    def __str__(self) -> str:
        if self.changed is None:
            share = "" if self.away is None else f", and by {100.0 * self.away:.2g}% of their deviation (root mean square)"
            return f"{self.unit} differ by at most {self.largest:.3g}{share}, on {self.rows:,} rows"
        labels = f"{self.changed:,} of {self.rows:,} rows ({100.0 * self.changed / max(self.rows, 1):.2g}%) have another label"
        return f"{labels}; {self.unit} differ by at most {self.largest:.3g}"


def comparison(program: Any, other: Any, X: Any, *, single: bool = False) -> Comparison:
    """Compare the answers of two programs on rows, both computed by numpy.

    Code in C answers as numpy does, but for rounding to float32 while it computes.

    Parameters
    ----------
    program
        A model, or its program from `program_of`.
    other
        What was made of it, such as by `quantised` or `reduced`, or another model of the same labels.
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
    >>> from streamsvm.export.describe import program_of
    >>> from streamsvm.export.quantise import quantised
    >>> model = BSGDClassifier(budget=10)
    >>> for value in range(20):
    ...     model.learn_one({"a": value}, value > 9)
    >>> program = program_of(model)
    >>> found = comparison(program, quantised(program, bits=16), [[0.0], [7.5], [19.0]])
    >>> found.rows, found.changed, found.unit, found.is_large
    (3, 0, 'probabilities', False)
    """
    program, other = (some if isinstance(some, Program) else program_of(some) for some in (program, other))
    if (program.answer.kind, program.answer.labels) != (other.answer.kind, other.answer.labels):
        raise ValueError("there is no comparison of programs with other labels, or of labels with numbers")
    before, after = Predictor(program), Predictor(other)
    rows = before._matrix_of(X)
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
    asked = (each.predict_proba_many if program.answer.odds else each.decision_function_many for each in (before, after))
    values = [ask(some) for ask, some in zip(asked, (rows, given), strict=True)]
    unit = "probabilities" if program.answer.odds else "decision values"
    return Comparison(len(rows), int((answers != others).sum()), float(np.abs(values[1] - values[0]).max()), unit, None)
