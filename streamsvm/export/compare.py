"""Comparison of a program that was made smaller with the one that it was made of, and rows to ask both."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.between import rows_between
from streamsvm.edge.predictor import Predictor
from streamsvm.edge.program import Program
from streamsvm.edge.step import vectors_of
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


def rows_near_vectors(program: Program, n: int = 1000, seed: int = 0) -> np.ndarray:
    """Return rows like those that a program was learned from: its vectors and rows between them, in the units of rows.

    Vectors of which no scaling leads back to rows, such as those of random Fourier features, give none.

    Parameters
    ----------
    program
        Program of a model, from `program_of`.
    n
        Number of rows. Each kernel and each memory of rows has the same share of them.
    seed
        Seed of the choice of vectors and rows.

    Returns
    -------
    ndarray
        float64 [n, columns], or [0, columns] if there is none to be had. A number that no vector tells is NaN, as missing ones
        are.

    Examples
    --------
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.export.describe import program_of
    >>> model = BSGDClassifier(budget=10)
    >>> for value in range(20):
    ...     model.learn_one({"a": value}, value > 9)
    >>> X = rows_near_vectors(program_of(model), 100)
    >>> X.shape, bool((X > -1.0).all() and (X < 20.0).all())
    ((100, 1), True)
    """
    rng, found = np.random.default_rng(seed), []
    steps = [step for step in program.steps if step.do in ("kernel", "neighbours", "trees") and len(step.arrays["vectors"])]
    for place, step in enumerate(steps):
        count, own = (place + 1) * n // len(steps) - place * n // len(steps), vectors_of(step)
        some = own[rng.permutation(len(own))[: count // 2]]
        near = np.concatenate([some, rows_between(own, count - len(some), rng)])
        if (rows := _led_back(program, step.of[0], near)) is not None:
            found.append(rows)
    return np.concatenate(found) if found else np.empty((0, len(program.columns)))


def _led_back(program: Program, number: int, values: np.ndarray) -> np.ndarray | None:
    """Return rows that have these values, float64 [n, width], as the value with this number; None where steps hide them."""
    if number == 0:
        return values
    step = program.steps[number - 1]
    if step.do == "join":
        ends = np.cumsum([program.widths[part] for part in step.of])[:-1]
        parts = [_led_back(program, *each) for each in zip(step.of, np.split(values, ends, axis=1), strict=True)]
        rows = np.full((len(values), len(program.columns)), math.nan)
        for part in parts:
            if part is None:
                return None
            rows = np.where(np.isnan(rows), part, rows)
        return rows
    if step.do == "select":
        whole = np.full((len(values), program.widths[step.of[0]]), math.nan)
        whole[:, step.arrays["columns"]] = values
        values = whole
    elif step.do == "scale":
        values = values * step.arrays["spread"] + step.arrays["location"]
    elif step.do != "fill":
        return None
    return _led_back(program, step.of[0], values)
