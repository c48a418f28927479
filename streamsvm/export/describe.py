"""The program of a model, of whatever kind it is, with the transformers before it."""

from __future__ import annotations

from typing import Any

from river import compose

from streamsvm.edge.program import Program, ProgramError
from streamsvm.export.facts import facts_of
from streamsvm.export.pipelines import add_scales, front_of

__all__ = ["program_of"]

_NOT_LEARNED = "it has not learned yet: there is nothing to predict by"


def program_of(model: Any) -> Program:
    """Return the program that predicts as a model does now.

    Parameters
    ----------
    model
        A learner, a fitted batch or linear machine, or a river pipeline with one at its end.

    Raises
    ------
    ProgramError
        The model has not learned yet, or a part of it cannot predict without streamsvm; the message names the part.

    Examples
    --------
    >>> from streamsvm import BSGDClassifier
    >>> model = BSGDClassifier(budget=10)
    >>> model.learn_one({"a": 1.0}, "yes")
    >>> [step.do for step in program_of(model).steps]
    ['fill', 'scale', 'kernel', 'linear']
    """
    *transformers, final = _steps(model)
    program = _of_batch(final, transformers) if _is_sklearn(final) else _of_river(final, transformers)
    program.check()
    return program


def _steps(model: Any) -> list[Any]:
    """Return the steps of a pipeline, those of pipelines in it, too; a model alone is one."""
    if not isinstance(model, compose.Pipeline):
        return [model]
    return [found for step in model.steps.values() for found in _steps(step)]


def _is_sklearn(model: Any) -> bool:
    return any(kind.__module__ == "streamsvm.core.sklearn_base" for kind in type(model).__mro__)


def _of_batch(model: Any, transformers: list[Any]) -> Program:
    from streamsvm.export.machines import machine_program  # noqa: PLC0415 - scikit-learn takes a second

    if transformers:
        raise ProgramError(f"a {type(transformers[0]).__name__} before a {type(model).__name__} is not exported")
    program = machine_program(model)
    program.facts = facts_of(model)
    return program


def _of_river(model: Any, transformers: list[Any]) -> Program:
    from streamsvm.export.committees import add_committee  # noqa: PLC0415 - compiled code takes a second
    from streamsvm.export.learners import add_learner  # noqa: PLC0415
    from streamsvm.export.wrappers import unwrapped  # noqa: PLC0415
    from streamsvm.learners.committee import Committee  # noqa: PLC0415
    from streamsvm.learners.estimator import OnlineEstimator  # noqa: PLC0415

    if (within := unwrapped(model)) is not None:
        *more, final = _steps(within.model)
        program = _of_river(final, [*transformers, *more])
        program.answer = within.finish(program, program.answer)
        return program
    if not isinstance(model, OnlineEstimator):
        raise ProgramError(_without_form(model))
    names = model.feature_names
    if not model.n_learned and not names:
        raise ProgramError(_NOT_LEARNED)
    front = front_of(names, transformers)
    hashed = model.max_features if model.overflow == "hash" and len(names) == model.max_features else 0
    if hashed and transformers:
        raise ProgramError("names that are hashed behind a transformer are not exported: learn with a larger max_features")
    program = Program(front.columns, hashed)
    value = add_scales(program, 0, front.scales)
    answer = (add_committee if isinstance(model, Committee) else add_learner)(program, model, value)
    if answer.kind == "class" and answer.labels[0] is None:
        raise ProgramError(_NOT_LEARNED)
    program.answer, program.facts = answer, facts_of(model)
    return program


def _without_form(model: Any) -> str:
    name = type(model).__name__
    if hasattr(model, "to_budget"):
        return f"a {name} has no form that predicts without it: model.to_budget(500) makes a learner of its last fit, which has"
    return f"a {name} has no form that predicts without it: only models of streamsvm have one"
