"""Converts models to programs: learners and batch machines, with the wrappers around them and the transformers before them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from river import compose

from streamsvm.core.checks import to_python_scalar
from streamsvm.core.memory.features import make_natural_sort_key
from streamsvm.edge.program import Answer, Column, ExportError, Program
from streamsvm.edge.step import Step
from streamsvm.export.pipelines import fold_transformers, get_river_name, start_program
from streamsvm.files.model_file import get_package_versions
from streamsvm.learners.conformal import ConformalClassifier, ConformalRegressor
from streamsvm.learners.costs import CostSensitiveClassifier
from streamsvm.learners.preprocessing import BoundedTargetScaler
from streamsvm.learners.thresholds import TunedThresholdClassifier

#: Texts for the metadata ``order`` of a program: the origin of the order of its columns.
_ORDER_TEXTS = {
    "table": "the order of the table",
    "natural": "the natural order of their names, for the model knows no order of a table",
    "model": "the order of the model, into which names are hashed",
}
_FIGURES = ("budget", "n_support", "n_merges", "effective_gamma", "effort", "active_combiner", "n_iter_", "duality_gap_")
_NAMES_IN_FILES = {"active_combiner": "follows", "n_iter_": "n_iter", "duality_gap_": "duality_gap"}
_MAX_TEXT_CHARACTERS = 200  # of a parameter in the metadata
_NOT_LEARNED = "it has not learned yet: there is nothing to predict by"


def make_program(model: Any) -> Program:
    """Convert a model to a program, a list of numpy operations that predict as the model does now. Programs can be written as C,
    ONNX or JSON, and are not updated when the model learns more.

    Parameters
    ----------
    model
        A learner, a fitted batch or linear machine, or a river pipeline that ends with one.

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
    *transformers, final = _flatten_pipeline(model)
    is_machine = any(cls.__module__ == "streamsvm.core.sklearn_base" for cls in type(final).__mro__)
    program = _convert_machine(final, transformers) if is_machine else _convert_learner(final, transformers)
    program.check_answer()
    return program


def _flatten_pipeline(model: Any) -> list[Any]:
    """Return the transformers and the final model of a river pipeline as a flat list, those of nested pipelines included; for a
    model that is not a pipeline, a list of the model alone.
    """
    if not isinstance(model, compose.Pipeline):
        return [model]
    return [inner for step in model.steps.values() for inner in _flatten_pipeline(step)]


def _convert_machine(model: Any, transformers: list[Any]) -> Program:
    """Convert ``model``, a fitted batch or linear SVM with the interface of scikit-learn, to a program (a list of numpy
    operations). Raises ExportError if the pipeline has ``transformers`` before it, because these are not supported here.
    """
    from streamsvm.export.machines import make_machine_program  # noqa: PLC0415 - importing scikit-learn takes a second

    if transformers:
        raise ExportError(f"a {type(transformers[0]).__name__} before a {type(model).__name__} is not exported")
    program = make_machine_program(model)
    program.metadata = describe_model(model) | {"order": "table"}
    return program


def _convert_learner(model: Any, transformers: list[Any]) -> Program:
    """Convert ``model``, a learner or a wrapper of one, and the river ``transformers`` that rows pass before it, to a program (a
    list of numpy operations). Raises ExportError if it has not learned yet, or a part of it is not supported.
    """
    from streamsvm.export.learners import add_ensemble, add_learner  # noqa: PLC0415 - loading compiled code takes a second
    from streamsvm.learners.ensemble import Ensemble  # noqa: PLC0415
    from streamsvm.learners.estimator import OnlineEstimator  # noqa: PLC0415

    if (unwrapped := _unwrap_model(model)) is not None:
        inner_model, finish_answer = unwrapped
        *inner_transformers, final = _flatten_pipeline(inner_model)
        program = _convert_learner(final, [*transformers, *inner_transformers])
        program.answer = finish_answer(program, program.answer)
        return program
    if not isinstance(model, OnlineEstimator):
        problem = f"a {type(model).__name__} cannot be exported"
        if hasattr(model, "key_models"):
            raise ExportError(f"{problem}: a program has no small models of keys. Learn a model without --key-models")
        if hasattr(model, "to_budget"):
            raise ExportError(f"{problem}: model.to_budget(500) makes a learner of its last fit, which can")
        raise ExportError(f"{problem}: only models of streamsvm can")
    names = model.feature_names
    if not model.n_learned and not names:
        raise ExportError(_NOT_LEARNED)
    inputs = fold_transformers(names, transformers)
    n_hash_columns = model.max_features if model.overflow == "hash" and len(names) == model.max_features else 0
    if n_hash_columns and transformers:
        raise ExportError("names that are hashed behind a transformer are not exported: learn with a larger max_features")
    program, value = start_program(inputs, n_hash_columns)
    answer = (add_ensemble if isinstance(model, Ensemble) else add_learner)(program, model, value)
    if answer.kind == "class" and answer.labels[0] is None:
        raise ExportError(_NOT_LEARNED)
    program.answer, program.metadata = answer, describe_model(model)
    return sort_columns(program, model._features.order)


# Wrappers ---------------------------------------------------------------------------------------------------------------------

#: Adds the steps of a wrapper to the program of the wrapped model, and returns the new answer.
FinishAnswer = Callable[[Program, Answer], Answer]


def _unwrap_model(model: Any) -> tuple[Any, FinishAnswer] | None:
    """Return the model inside a wrapper (target scaler, tuned threshold, costs or conformal prediction), and a function that
    takes the exported program of the inner model and its prediction rule, and returns the rule of the wrapper. Returns None if
    ``model`` is not a wrapper.
    """
    if isinstance(model, BoundedTargetScaler):
        n, mean, squares = model._scaler._moments[0]
        return model.regressor, _make_unscaling(mean, math.sqrt(squares / max(n, 1.0)))
    if get_river_name(model) == "TargetStandardScaler":
        return model.regressor, _make_unscaling(model.var.mean.get(), model.var.get() ** 0.5)
    if isinstance(model, TunedThresholdClassifier):
        return model.classifier, _make_thresholding(model)
    if isinstance(model, CostSensitiveClassifier):
        return model.classifier, _make_cost_weighting(model)
    if isinstance(model, ConformalClassifier | ConformalRegressor):  # they predict as the wrapped model does
        return model._wrapped_model, lambda _, answer: answer
    return None


def _make_unscaling(mean: float, deviation: float) -> FinishAnswer:
    """Return a function that takes a regressor's exported program and its prediction rule, and returns a new rule: predictions
    are converted from standardised targets back to the original units, by this ``mean`` and standard ``deviation``. An operation
    for this is appended to the program.
    """

    def finish_answer(program: Program, answer: Answer) -> Answer:
        value = program.add("linear", answer.decision, weights=np.array([[deviation]]), biases=np.array([mean]))
        return answer._replace(decision=value, choice=value)

    return finish_answer


def _make_thresholding(model: TunedThresholdClassifier) -> FinishAnswer:
    """Return a function that takes the exported program of a binary classifier and its prediction rule, and returns a new rule:
    the positive label is predicted where its probability reaches the threshold that ``model`` has tuned.
    """

    def finish_answer(program: Program, answer: Answer) -> Answer:
        if len(model._labels) < 2 or answer.calibration is None:
            return answer
        if len(answer.labels) > 2:
            raise ExportError("a tuned threshold is not exported for more than two labels")
        is_second = answer.labels[1] == model._find_positive_label()
        return _with_threshold(program, answer, model.threshold if is_second else 1.0 - model.threshold, at_zero=int(is_second))

    return finish_answer


def _make_cost_weighting(model: CostSensitiveClassifier) -> FinishAnswer:
    """Return a function that takes the exported program of a classifier and its prediction rule, and returns a new rule: the
    label with the largest product of probability and cost is predicted. The costs of missing each label are those of ``model``.
    """

    def finish_answer(program: Program, answer: Answer) -> Answer:
        if answer.calibration is None:
            if len(answer.labels) > 1:
                raise ExportError("a CostSensitiveClassifier of a model without probabilities is not exported")
            return answer
        costs = tuple(model.costs.get(label, 1.0) for label in answer.labels)
        if len(costs) > 2:
            return answer._replace(costs=costs)
        return _with_threshold(program, answer, costs[0] / (costs[0] + costs[1]), at_zero=0)

    return finish_answer


def _with_threshold(program: Program, answer: Answer, threshold: float, at_zero: int) -> Answer:
    """Return a copy of ``answer``, the prediction rule of a binary classifier, that predicts the second label if its probability
    is above ``threshold``. If they are equal, the label with the index ``at_zero`` (0 or 1) is predicted. An operation for this
    is appended to the ``program``.
    """
    decision = _find_threshold_decision(answer, threshold)
    value = program.add("linear", answer.decision, weights=np.ones((1, 1)), biases=np.array([-decision]))
    return answer._replace(choice=value, at_zero=at_zero)


def _find_threshold_decision(answer: Answer, threshold: float) -> float:
    """Return the smallest decision value of a binary classifier that gives the second label a probability of at least
    ``threshold``, found by bisection. ``answer`` is the prediction rule, with the calibration from decision values to
    probabilities.
    """
    low, high, calibration = -1e9, 1e9, answer.calibration
    for _ in range(200):  # bisection: the probability is monotonic
        middle = 0.5 * (low + high)
        if calibration is not None and calibration.compute_probabilities(np.array([[middle]]))[0, 1] >= threshold:
            high = middle
        else:
            low = middle
    return high


# Order of the columns ---------------------------------------------------------------------------------------------------------


def describe_order(order: Any) -> str:
    """Return an English phrase for the order of the input columns of an exported model. ``order`` is its name in the model's
    metadata: ``"table"``, ``"natural"`` or ``"model"``; other values give "this order".
    """
    return _ORDER_TEXTS.get(str(order), "this order")


def sort_columns(program: Program, order: Sequence[Hashable] | None) -> Program:
    """Return an equivalent program (a model as a list of numpy operations) whose input columns are in the order of the names in
    ``order``, such as those of the user's table. All arrays are permuted along.

    Columns that are not in ``order`` come last. Columns of the same field, and those that are not in ``order``, are in natural
    order. Columns into which names are hashed keep their order. The arrays take as many bytes as before.
    """
    program.metadata["order"] = "model" if program.n_hash_columns else "natural" if order is None else "table"
    if program.n_hash_columns:
        return program
    new_order = find_column_order(program.columns, order)
    if (new_order == np.arange(len(new_order))).all():
        return program
    result = Program([program.columns[number] for number in new_order], program.n_hash_columns, program.tables)
    result.answer, result.metadata = program.answer, program.metadata
    # Number j of a value was number ``orders[value][j]`` before.
    orders = [new_order]
    for step, width in zip(program.steps, program.widths[1:], strict=True):
        starts = np.cumsum([0, *(len(orders[value]) for value in step.inputs)]).tolist()
        input_order = np.concatenate([start + orders[value] for start, value in zip(starts, step.inputs, strict=False)])
        is_same = (input_order == np.arange(len(input_order))).all()
        new_step, output_order = (step, np.arange(width)) if is_same else _permute_step(step, input_order, width)
        result.add_step(new_step)
        orders.append(output_order)
    if any((orders[value] != np.arange(len(orders[value]))).any() for value in (result.answer.decision, result.answer.choice)):
        raise ExportError("its answer is the row itself")
    return result


def find_column_order(columns: Sequence[Column], order: Sequence[Hashable] | None) -> np.ndarray:
    """Return the permutation, int64 [columns], that sorts the input columns of an exported model as their names are listed in
    ``order``. Columns that are not listed follow in natural order (``a2`` before ``a10``), as all columns do if ``order`` is
    missing.
    """
    ranks = {} if order is None else {name: rank for rank, name in enumerate(order)}

    def make_key(number: int) -> tuple[Any, ...]:
        column = columns[number]
        encodings = [encoding is not None for encoding in column[2:]]  # a number comes before the encodings of the same field
        rank = ranks.get(column.name, ranks.get(column.field, len(ranks)))
        return rank, make_natural_sort_key(column.field), encodings, make_natural_sort_key(column.name)

    return np.array(sorted(range(len(columns)), key=make_key), np.int64)


#: Operations whose number j depends on input j alone.
_ELEMENTWISE = frozenset({"impute", "fill", "cycles", "scale", "clip", "log", "concat"})
#: Operations that sum over their inputs, and their arrays whose last dimension has an entry for each input.
_SUMMING = {"kernel": ["vectors"], "fourier": ["vectors"], "neighbours": ["vectors", "feature_weights"], "linear": ["weights"]}


def _permute_step(step: Step, input_order: np.ndarray, width: int) -> tuple[Step, np.ndarray]:
    """Adapt ``step`` (one operation of a program) to inputs in another order: input j was number ``input_order[j]`` before.
    Returns the new step, and the new order of its ``width`` outputs in the same form, int [width].
    """
    arrays = step.arrays
    if step.op == "hinges":
        functions = step.options["functions"]
        return step, (functions * input_order[:, None] + np.arange(functions)).ravel()
    if step.op in _ELEMENTWISE:
        new_arrays = {name: array[input_order] for name, array in arrays.items()}
    elif step.op == "select":
        new_arrays = {"columns": np.argsort(input_order)[arrays["columns"]]}
    elif step.op == "forest":
        is_inner, feature = arrays["left"] >= 0, arrays["feature"]
        new_features = np.argsort(input_order)[np.where(is_inner, feature, 0)].astype(feature.dtype)
        new_arrays = {"feature": np.where(is_inner, new_features, feature)}
    else:
        new_arrays = {name: arrays[name][..., input_order] for name in _SUMMING[step.op]}
    new_arrays = {name: np.ascontiguousarray(array) for name, array in new_arrays.items()}
    output_order = input_order if step.op in _ELEMENTWISE else np.arange(width)
    return replace(step, arrays={**arrays, **new_arrays}), output_order


# Metadata ---------------------------------------------------------------------------------------------------------------------


def describe_model(model: Any) -> dict[str, Any]:
    """Return metadata of a learner or fitted SVM as a dict that JSON can hold: its class name, package versions, parameters,
    number of learned rows, and figures such as the number of support vectors.

    >>> from streamsvm import BSGDClassifier
    >>> model = BSGDClassifier(budget=10, gamma=2.0)
    >>> model.learn_one({"a": 1.0}, "yes")
    >>> metadata = describe_model(model)
    >>> metadata["model"], metadata["rows"], metadata["n_support"], metadata["parameters"]["gamma"]
    ('BSGDClassifier', 1, 1, 2.0)
    """
    metadata: dict[str, Any] = {"model": type(model).__name__, "versions": get_package_versions()}
    parameters = model.get_params(deep=False) if hasattr(model, "get_params") else getattr(model, "_get_params", dict)()
    metadata["parameters"] = {name: _format_parameter(value) for name, value in parameters.items()}
    rows = getattr(model, "n_learned", None) or getattr(model, "n_samples_fit_", None) or getattr(model, "shape_fit_", [None])[0]
    figures = {_NAMES_IN_FILES.get(name, name): getattr(model, name) for name in _FIGURES if hasattr(model, name)}
    for name, value in {"rows": rows, **figures}.items():
        if value is not None and (scalar := _to_json_scalar(value)) is not None:
            metadata[name] = scalar
    return metadata


def _format_parameter(value: Any) -> Any:
    """Convert the value of a model's parameter for JSON metadata: bools, numbers, short texts and None stay, and other objects
    become their ``repr``, cut to 200 characters.
    """
    scalar = _to_json_scalar(value)
    return repr(value)[:_MAX_TEXT_CHARACTERS] if scalar is None and value is not None else scalar


def _to_json_scalar(value: Any) -> Any:
    """Convert a value, such as a numpy number, to a bool, int, finite float or text of at most 200 characters for JSON. Returns
    None for every other value.
    """
    value = to_python_scalar(value)
    if isinstance(value, str):
        return value if len(value) <= _MAX_TEXT_CHARACTERS else None
    is_json = isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**63)
    return value if is_json or (isinstance(value, float) and math.isfinite(value)) else None
