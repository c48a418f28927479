"""How a run continues with the model of a checkpoint: what may differ, and one line for each part that does."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from streamsvm.core.mutation import compare_parameters
from streamsvm.stream.checkpoint import Checkpoint, CheckpointError
from streamsvm.stream.endpoints import KEEP_MODEL, ForeignPositionError, Position, Source, StreamError
from streamsvm.stream.logs import event
from streamsvm.stream.rows import describe_parameters, get_learned_columns

_START_ADVICE = "To continue with its model, say where to begin here: --from earliest (source.start = 'earliest')"
_COPY_ADVICE = ", or in a copy of the topic --from TIME or PARTITION:OFFSET, so that no row is learned twice"
logger: logging.Logger = logging.getLogger(__name__)


def report_change(name: Path | str, part: str, text: str, rows: int | None = None) -> None:
    """Log that a ``part`` of a run, such as ``"sink"``, is new, changed or dropped since the checkpoint that the run continues.
    ``name`` is the stream or checkpoint, and ``rows`` the number of rows before the change.
    """
    logger.warning("%s: %s", name, text, extra=event("changed", part=part, rows=rows))


def describe_place(position: Position) -> str:
    """Return the name of the file or topic of a sink from its ``position`` in a checkpoint."""
    return str(position.get("name", position.get("topic", "another sink")))


def adopt_parameters(place: Path | str, checkpoint: Checkpoint, requested: str | None, model: Any) -> str:
    """Give the model of a checkpoint the parameters of ``model``, an untrained one that `describe_parameters` has described as
    ``requested``, and log the changes; with None, it keeps its own. Return the text that describes its parameters. Raise a
    CheckpointError, with nothing changed, if a parameter cannot change.
    """
    saved = checkpoint.header.get("parameters")
    if requested is None:
        return saved if isinstance(saved, str) else describe_parameters(checkpoint.model.clone())
    if saved == requested:
        return requested
    differences = compare_parameters(checkpoint.model, model)
    try:
        if differences.conflicts:
            raise ValueError(f"what it has learned depends on parameters that differ: {', '.join(differences.conflicts)}")
        checkpoint.model.mutate(differences.new_params)
    except ValueError as error:
        flags = "--learner, --scale, --bound, --threshold, --costs, --interval, --key-models"
        hint = f"To continue with its model, leave {flags} out (model=None)"
        raise CheckpointError(f"{place} holds a model with other parameters: {error}. {hint}") from None
    for text in differences.changes:
        report_change(place, "model", text)
    return requested


def check_same_weight(place: Path | str, checkpoint: Checkpoint, weight: str | None) -> None:
    """Raise a CheckpointError if ``weight``, the column with the weights of rows, was a feature when the checkpoint was written,
    or the column that had the weights would now be a feature.
    """
    saved = checkpoint.header.get("weight")
    if saved != weight and (saved is not None or weight in get_learned_columns(checkpoint.model)):
        advice = "leave --weight out, for this column is a feature" if saved is None else f"give --weight {saved}"
        text = "no weights" if saved is None else f"the weight {saved!r}"
        raise CheckpointError(f"{place} was learned with {text}, not {weight!r}: {advice}")


def seek_or_begin(source: Source, position: Position, rows: int | None) -> None:
    """Continue ``source`` at the ``position`` of a checkpoint. If that is of another stream, begin where ``source.start`` says,
    and log it; raise a StreamError if it says nothing. ``rows`` is the number of rows before.
    """
    try:
        source.seek(position)
    except ForeignPositionError as error:
        here = source.position
        if "label" in position and "label" in here and position["label"] != here["label"]:
            raise StreamError(f"{source.name}: {describe_label(position['label'], here['label'])}") from None
        if source.start is None:
            raise StreamError(f"{error}. {_START_ADVICE}{_COPY_ADVICE * source.start_can_change}") from None
        reason = str(error).removeprefix(f"{source.name}: ")
        report_change(source.name, "source", f"{reason}. Its model is kept, and reading begins at {source.start}", rows)


def describe_label(saved: Any, label: Any) -> str:
    """Return a message for a checkpoint that was learned with another label than ``label``."""
    return f"the checkpoint was learned with the label {saved!r}, not {label!r}. Ask for the same, {KEEP_MODEL}"
