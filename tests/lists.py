"""Which of many cases the quick list of tests has, and which the run without compiling: markers, by discovery."""

import itertools

import pytest
from river import checks

from streamsvm import learners
from streamsvm.learners.classifier import ReferenceClassifier

BASELINES = [name for name in learners.__all__ if issubclass(getattr(learners, name), ReferenceClassifier)]


def first(n, values, others=pytest.mark.thorough):
    """Return values as parameters, all but the first ones with a mark."""
    return [pytest.param(value, marks=[others] * (i >= n)) for i, value in enumerate(values)]


def in_turn(cases, *values):
    """Return each case with the next of some values, of which the first comes again after the last, as parameters."""
    return list(zip(cases, itertools.cycle(values), strict=False))


def of_each_kind(values, kind_of=type):
    """Return values as parameters, all but the first of each kind for the thorough list."""
    found, parameters = set(), []
    for value in values:
        parameters.append(pytest.param(value, marks=[pytest.mark.thorough] * (kind_of(value) in found)))
        found.add(kind_of(value))
    return parameters


def checks_of_river(models):
    """Return each model with river's checks of it, those that are marked alike together, as parameters.

    The growth of memory only shows after many rows, so the thorough list has it, of the first model of a kind. Features that
    come and go lead to other indexes in compiled code; what else river asks is not asked again without compiling.
    """
    found = {}
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
            found.setdefault((number, *(mark.name for mark in marks)), (model, [], marks))[1].append(check)
    return [pytest.param(model, of_model, marks=marks) for model, of_model, marks in found.values()]
