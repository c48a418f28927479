"""The program of a model, of whatever kind it is, with its facts, the wrappers round it and the transformers before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from river import compose

from streamsvm.core.checks import to_python_scalar
from streamsvm.core.memory.features import make_natural_key
from streamsvm.edge.program import Answer, Column, ExportError, Program
from streamsvm.edge.step import Step
from streamsvm.export.pipelines import add_scalings, fold_transformers, get_river_name
from streamsvm.files.model_file import package_versions
from streamsvm.learners.conformal import ConformalClassifier, ConformalRegressor
from streamsvm.learners.costs import CostSensitiveClassifier
from streamsvm.learners.preprocessing import BoundedTargetScaler
from streamsvm.learners.thresholds import TunedThresholdClassifier

_ORDERS = {
    "table": "the order of the table",
    "natural": "the natural order of their names, for the model knows no order of a table",
    "model": "the order of the model, into which names are hashed",
}


def describe_order(order: Any) -> str:
    """Describe the order in which a program takes numbers, by its fact ``order``."""
    return _ORDERS.get(str(order), "this order")


def sort_columns(program: Program, order: Sequence[Hashable] | None) -> Program:
    """Return a program whose columns are in an order, and which says the same. Its arrays take as many bytes.

    A column stands where its field does in ``order``, or behind all that are there; features of the same field, and fields
    without a place, are in natural order. The columns stay as they are where names are hashed into them.
    """
    program.metadata["order"] = "model" if program.hashed else "natural" if order is None else "table"
    if program.hashed:
        return program
    moved = find_column_order(program.columns, order)
    if (moved == np.arange(len(moved))).all():
        return program
    made = Program([program.columns[number] for number in moved], program.hashed, program.tables)
    made.answer, made.metadata = program.answer, program.metadata
    # Number j of a value is number ``orders[value][j]`` of what it was.
    orders = [moved]
    for step, width in zip(program.steps, program.widths[1:], strict=True):
        begins = np.cumsum([0, *(len(orders[value]) for value in step.inputs)]).tolist()
        own = np.concatenate([begin + orders[value] for begin, value in zip(begins, step.inputs, strict=False)])
        same = (own == np.arange(len(own))).all()
        changed, of_value = (step, np.arange(width)) if same else _reordered_step(step, own, width)
        made.add_step(changed)
        orders.append(of_value)
    if any((orders[value] != np.arange(len(orders[value]))).any() for value in (made.answer.decision, made.answer.choice)):
        raise ExportError("its answer is the row itself")
    return made


def find_column_order(columns: Sequence[Column], order: Sequence[Hashable] | None) -> np.ndarray:
    """Return the places of columns, int64, in the order that `sort_columns` gives them."""
    places = {} if order is None else {name: place for place, name in enumerate(order)}

    def key(number: int) -> tuple[Any, ...]:
        column = columns[number]
        kind = [made is not None for made in column[2:]]  # the number itself comes first
        place = places.get(column.name, places.get(column.field, len(places)))
        return place, make_natural_key(column.field), kind, make_natural_key(column.name)

    return np.array(sorted(range(len(columns)), key=key), np.int64)


_EACH = frozenset({"impute", "scale", "clip", "log", "concat"})  # steps whose number j is one of number j alone
#: Of steps that sum over numbers: the arrays that have one for each in their last dimension.
_SUMMED = {"kernel": ["vectors"], "fourier": ["vectors"], "neighbours": ["vectors", "feature_weights"], "linear": ["weights"]}


def _reordered_step(step: Step, own: np.ndarray, width: int) -> tuple[Step, np.ndarray]:
    """Return a step whose numbers come in the order ``own``, and the order of its value, which has so many."""
    arrays = step.arrays
    if step.op == "hinges":
        functions = step.options["functions"]
        return step, (functions * own[:, None] + np.arange(functions)).ravel()
    if step.op in _EACH:
        changed = {name: array[own] for name, array in arrays.items()}
    elif step.op == "select":
        changed = {"columns": np.argsort(own)[arrays["columns"]]}
    elif step.op == "forest":
        inner, feature = arrays["left"] >= 0, arrays["feature"]
        places = np.argsort(own)[np.where(inner, feature, 0)].astype(feature.dtype)
        changed = {"feature": np.where(inner, places, feature)}
    else:
        changed = {name: arrays[name][..., own] for name in _SUMMED[step.op]}
    changed = {name: np.ascontiguousarray(array) for name, array in changed.items()}
    return replace(step, arrays={**arrays, **changed}), own if step.op in _EACH else np.arange(width)


_FIGURES = ("budget", "n_support", "n_merges", "effective_gamma", "effort", "follows", "n_iter_", "duality_gap_")
_LONGEST = 200  # characters of a parameter


def describe_model(model: Any) -> dict[str, Any]:
    """Return the facts of a learner or a fitted machine, as JSON.

    >>> from streamsvm import BSGDClassifier
    >>> model = BSGDClassifier(budget=10, gamma=2.0)
    >>> model.learn_one({"a": 1.0}, "yes")
    >>> facts = describe_model(model)
    >>> facts["model"], facts["rows"], facts["n_support"], facts["parameters"]["gamma"]
    ('BSGDClassifier', 1, 1, 2.0)
    """
    found: dict[str, Any] = {"model": type(model).__name__, "versions": package_versions()}
    parameters = model.get_params(deep=False) if hasattr(model, "get_params") else getattr(model, "_get_params", dict)()
    found["parameters"] = {name: _shown_value(value) for name, value in parameters.items()}
    rows = getattr(model, "n_learned", None) or getattr(model, "n_samples_fit_", None) or getattr(model, "shape_fit_", [None])[0]
    figures = {name.rstrip("_"): getattr(model, name) for name in _FIGURES if hasattr(model, name)}
    for name, value in {"rows": rows, **figures}.items():
        if value is not None and (plain := _plain_value(value)) is not None:
            found[name] = plain
    return found


def _shown_value(value: Any) -> Any:
    plain = _plain_value(value)
    return repr(value)[:_LONGEST] if plain is None and value is not None else plain


def _plain_value(value: Any) -> Any:
    """Return a value as JSON has it; None where it is no text and no finite number."""
    value = to_python_scalar(value)
    good = isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**63)
    good = good or (isinstance(value, float) and math.isfinite(value)) or (isinstance(value, str) and len(value) <= _LONGEST)
    return value if good else None


Finish = Callable[[Program, Answer], Answer]


def _unwrapped_model(model: Any) -> tuple[Any, Finish] | None:
    """Return the model within a wrapper, and what completes the answer of its program; None of a model that is none."""
    if isinstance(model, BoundedTargetScaler):
        n, mean, squares = model._scaler._moments[0]
        return model.regressor, _scaled_finish(mean, math.sqrt(squares / max(n, 1.0)))
    if get_river_name(model) == "TargetStandardScaler":
        return model.regressor, _scaled_finish(model.var.mean.get(), model.var.get() ** 0.5)
    if isinstance(model, TunedThresholdClassifier):
        return model.classifier, _with_threshold(model)
    if isinstance(model, CostSensitiveClassifier):
        return model.classifier, _with_costs(model)
    if isinstance(model, ConformalClassifier | ConformalRegressor):  # whose predictions are those of what it wraps
        return model._wrapped_model, lambda _, answer: answer
    return None


def _scaled_finish(mean: float, deviation: float) -> Finish:
    def finish(program: Program, answer: Answer) -> Answer:
        value = program.add("linear", answer.decision, weights=np.array([[deviation]]), biases=np.array([mean]))
        return answer._replace(decision=value, choice=value)

    return finish


def _with_threshold(model: TunedThresholdClassifier) -> Finish:
    def finish(program: Program, answer: Answer) -> Answer:
        if len(model._labels) < 2 or answer.calibration is None:
            return answer
        if len(answer.labels) > 2:
            raise ExportError("a threshold of three and more labels is not exported")
        above = answer.labels[1] == model._positive_label()
        return _from_second(program, answer, model.threshold if above else 1.0 - model.threshold, at_zero=int(above))

    return finish


def _with_costs(model: CostSensitiveClassifier) -> Finish:
    def finish(program: Program, answer: Answer) -> Answer:
        if answer.calibration is None:
            if len(answer.labels) > 1:
                raise ExportError("it chooses labels by their costs, and has no probabilities without streamsvm")
            return answer
        costs = tuple(model.costs.get(label, 1.0) for label in answer.labels)
        if len(costs) > 2:
            return answer._replace(costs=costs)
        return _from_second(program, answer, costs[0] / (costs[0] + costs[1]), at_zero=0)

    return finish


def _from_second(program: Program, answer: Answer, threshold: float, at_zero: int) -> Answer:
    """Return the answer that is the second of two labels where its probability is as large as a threshold."""
    value = program.add("linear", answer.decision, weights=np.ones((1, 1)), biases=np.array([-_decision_of(answer, threshold)]))
    return answer._replace(choice=value, at_zero=at_zero)


def _decision_of(answer: Answer, threshold: float) -> float:
    """Return the least decision value whose label, the second, has a probability of at least so much."""
    low, high = -1e9, 1e9
    for _ in range(200):  # the probability never falls
        middle = 0.5 * (low + high)
        if answer.calibration is not None and answer.calibration.compute_probabilities(np.array([[middle]]))[0, 1] >= threshold:
            high = middle
        else:
            low = middle
    return high


_NOT_LEARNED = "it has not learned yet: there is nothing to predict by"


def make_program(model: Any) -> Program:
    """Return the program that predicts as a model does now.

    Parameters
    ----------
    model
        A learner, a fitted batch or linear machine, or a river pipeline with one at its end.

    Raises
    ------
    ExportError
        The model has not learned yet, or a part of it cannot predict without streamsvm; the message names the part.

    Examples
    --------
    >>> from streamsvm import BSGDClassifier
    >>> model = BSGDClassifier(budget=10)
    >>> model.learn_one({"a": 1.0}, "yes")
    >>> [step.op for step in make_program(model).steps]
    ['impute', 'scale', 'kernel', 'linear']
    """
    *transformers, final = _steps_of_model(model)
    is_machine = any(kind.__module__ == "streamsvm.core.sklearn_base" for kind in type(final).__mro__)
    program = _of_batch(final, transformers) if is_machine else _of_river(final, transformers)
    program.check_answer()
    return program


def _steps_of_model(model: Any) -> list[Any]:
    """Return the steps of a pipeline, those of pipelines in it, too; a model alone is one."""
    if not isinstance(model, compose.Pipeline):
        return [model]
    return [found for step in model.steps.values() for found in _steps_of_model(step)]


def _of_batch(model: Any, transformers: list[Any]) -> Program:
    from streamsvm.export.machines import make_machine_program  # noqa: PLC0415 - scikit-learn takes a second

    if transformers:
        raise ExportError(f"a {type(transformers[0]).__name__} before a {type(model).__name__} is not exported")
    program = make_machine_program(model)
    program.metadata = describe_model(model) | {"order": "table"}
    return program


def _of_river(model: Any, transformers: list[Any]) -> Program:
    from streamsvm.export.learners import add_ensemble, add_learner  # noqa: PLC0415 - compiled code takes a second
    from streamsvm.learners.ensemble import Ensemble  # noqa: PLC0415
    from streamsvm.learners.estimator import OnlineEstimator  # noqa: PLC0415

    if (found := _unwrapped_model(model)) is not None:
        within, finish = found
        *more, final = _steps_of_model(within)
        program = _of_river(final, [*transformers, *more])
        program.answer = finish(program, program.answer)
        return program
    if not isinstance(model, OnlineEstimator):
        problem = f"a {type(model).__name__} has no form that predicts without it"
        if hasattr(model, "to_budget"):
            raise ExportError(f"{problem}: model.to_budget(500) makes a learner of its last fit, which has")
        raise ExportError(f"{problem}: only models of streamsvm have one")
    names = model.feature_names
    if not model.n_learned and not names:
        raise ExportError(_NOT_LEARNED)
    front = fold_transformers(names, transformers)
    hashed = model.max_features if model.overflow == "hash" and len(names) == model.max_features else 0
    if hashed and transformers:
        raise ExportError("names that are hashed behind a transformer are not exported: learn with a larger max_features")
    program = Program(front.columns, hashed, front.tables)
    value = add_scalings(program, 0, front.scales)
    answer = (add_ensemble if isinstance(model, Ensemble) else add_learner)(program, model, value)
    if answer.kind == "class" and answer.labels[0] is None:
        raise ExportError(_NOT_LEARNED)
    program.answer, program.metadata = answer, describe_model(model)
    return sort_columns(program, model._features.order)
