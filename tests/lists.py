"""Marks test cases for the thorough list of tests, and for runs with compiled code only."""

import itertools
import os

import pytest
from river import checks

from streamsvm import learners
from streamsvm.learners.budgeted_classifier import ReferenceClassifier

#: Whether tests run for a release, and try more: `make release-check` sets the variable.
OF_RELEASE = bool(os.environ.get("STREAMSVM_TEST_RELEASE"))

BASELINES = [name for name in learners.__all__ if issubclass(getattr(learners, name), ReferenceClassifier)]


def first(n, values, others=pytest.mark.thorough):
    """Return values as parameters, with a mark on all but the first n."""
    return [pytest.param(value, marks=[others] * (i >= n)) for i, value in enumerate(values)]


def sample(n, values):
    """Return ``n`` of some values, evenly spaced from the first to the last; before a release, all of them."""
    values = list(values)
    return values if OF_RELEASE or len(values) <= n else [values[number * (len(values) - 1) // (n - 1)] for number in range(n)]


def in_turn(cases, *values):
    """Return each case with one of some values, in turn, as parameters."""
    return list(zip(cases, itertools.cycle(values), strict=False))


def pairs(values, others):
    """Return pairs of values as parameters: all for a release, otherwise each of the first with one of the others, in turn."""
    return list(itertools.product(values, others)) if OF_RELEASE else in_turn(values, *others)


def of_each_kind(values, kind_of=type):
    """Return values as parameters; all but the first of each kind are marked for the thorough list."""
    seen_kinds, parameters = set(), []
    for value in values:
        parameters.append(pytest.param(value, marks=[pytest.mark.thorough] * (kind_of(value) in seen_kinds)))
        seen_kinds.add(kind_of(value))
    return parameters


def checks_of_river(models):
    """Return each model with river's checks for it as parameters, grouped by their marks.

    Memory growth needs many rows, so only the thorough list checks it, for the first model of a kind. Changing features use
    other indexes in compiled code, so that check also runs without compiling; the others do not.
    """
    checks_by_marks = {}
    for number, of_kind in enumerate(of_each_kind(models)):
        (model,) = of_kind.values
        for check in checks.yield_checks(model):
            marks = list(of_kind.marks)
            if check.__name__ == "check_bounded_memory_growth":
                if marks:
                    continue
                marks.append(pytest.mark.thorough)
            if check.__name__ not in ("check_emerging_features", "check_disappearing_features"):
                marks.append(pytest.mark.once)
            checks_by_marks.setdefault((number, *(mark.name for mark in marks)), (model, [], marks))[1].append(check)
    return [pytest.param(model, of_model, marks=marks) for model, of_model, marks in checks_by_marks.values()]
