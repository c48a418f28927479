"""Merges the models of several runs, such as those of the partitions of a topic, into one model."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from streamsvm.core.memory.features import make_natural_sort_key
from streamsvm.core.transformers import merge_transformers
from streamsvm.core.warning import warn
from streamsvm.files.messages import format_names
from streamsvm.stream.checkpoint import Checkpoint, CheckpointError, Checkpoints
from streamsvm.stream.prediction import open_followed
from streamsvm.stream.rows import find_learner, split_pipeline
from streamsvm.stream.tables.column_kinds import select_different_kinds
from streamsvm.stream.tables.table_schema import format_flags

_KIND = "merged"
_PARTITION_PATTERN = "partition-*"
#: The fields of a position that hold the options of reading.
_READING_OPTIONS = "label", "weight", "table", "key", "time", "message_columns"
_MAX_NAMED_FOLDERS = 5


def merge_models(models: Sequence[Any]) -> Any:
    """Merge several models that were trained on different rows into one model, as if it had learned all of these rows.

    The models themselves do not change.

    Parameters
    ----------
    models
        The models, at least one, all of one class and with the same parameters. Each is a learner with ``merge_with``, or a
        pipeline of one transformer (`BoundedScaler`, `TableEncoder` or river's StandardScaler) and a learner with ``merge_with``.
        The learner may be inside a `BoundedTargetScaler`, or a wrapper that chooses labels by costs or a threshold.

    Returns
    -------
    The merged model. Each model has a weight that is the number of rows that it has learned.

    Raises
    ------
    ValueError
        The models cannot be merged. The message says why, and what to learn with instead.

    Notes
    -----
    The statistics of transformers are pooled. Support vectors are converted from the scale of their own pipeline to the pooled
    one, and then merged as in `BSGDClassifier.merge_with`. The same models in the same order give the same bytes.

    Examples
    --------
    >>> from river import datasets
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.learners.preprocessing import BoundedScaler
    >>> models = [BoundedScaler() | BSGDClassifier(budget=50, scaling=None) for _ in range(2)]
    >>> for number, (x, y) in enumerate(datasets.Bananas()):
    ...     models[number % 2].learn_one(x, y)
    >>> model = merge_models(models)
    >>> model["BoundedScaler"].counts["1"], model["BSGDClassifier"].n_learned
    (5300, 5300)
    """
    if not models:
        raise ValueError("there is no model to merge: give at least one")
    learner = find_learner(models[0])
    if not hasattr(learner, "merge_with"):
        advice = "BSGDClassifier or BSCAClassifier, their regressors, or a linear learner (--learner bsgd, bsca or linear)"
        raise ValueError(f"models of {type(learner).__name__} cannot be merged: learn with {advice}")
    model = copy.deepcopy(models[0])
    (transformers, last_step), *parts = [split_pipeline(one) for one in (model, *models[1:])]
    if unlike := [part for part in parts if len(part[0]) != len(transformers) or type(part[1]) is not type(last_step)]:
        models_steps = (*transformers, last_step), (*unlike[0][0], unlike[0][1])
        names = [" | ".join(type(step).__name__ for step in steps) for steps in models_steps]
        raise ValueError(f"models of different steps cannot be merged: one is {names[0]}, another {names[1]}")
    if not hasattr(last_step, "merge_with"):
        reason = "intervals and sets were calibrated for each model alone. Learn without --interval"
        raise ValueError(f"models of {type(last_step).__name__} cannot be merged: {reason}")
    if not transformers:
        last_step.merge_with(*(part for _, part in parts))
        return model
    if len(transformers) > 1:
        raise ValueError(f"models with {len(transformers)} transformers before them cannot be merged: learn with one or none")
    units = merge_transformers(transformers[0], [steps[0] for steps, _ in parts])
    last_step.merge_with(*(part for _, part in parts), units=units)
    return model


class MergeResult(NamedTuple):
    """The numbers of rows of a merged model: of all folders, which is also its version, and of each folder by name."""

    rows: int
    parts: dict[str, int]


class CheckpointMerger:
    """Merges the models in several folders or topics of checkpoints, and writes the result as a checkpoint.

    Followers can use the merged model.

    Parameters
    ----------
    sources
        Folders of checkpoints, or topics (URLs). A folder with subfolders ``partition-*``, as the workers of a group write them,
        stands for all of these, including later ones. Other processes may write to them.
    checkpoints
        Store for the merged model, such as a `CheckpointFolder`.
    trusted
        Whether models may hold classes and functions of your own, as in `streamsvm.load`.

    Raises
    ------
    CheckpointError
        A folder does not exist, is named twice, or is that of ``checkpoints``; or ``checkpoints`` has other checkpoints than
        those of merged models.

    Examples
    --------
    >>> import tempfile
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.stream import CheckpointFolder
    >>> parts, result = Path(tempfile.mkdtemp()), CheckpointFolder(tempfile.mkdtemp())
    >>> for number in range(2):
    ...     model = BSGDClassifier()
    ...     for value in (0.0, 1.0):
    ...         model.learn_one({"a": value}, value > 0.5)
    ...     with CheckpointFolder(parts / f"partition-{number}") as folder:
    ...         _ = folder.save(model, None, rows=2, position={})
    >>> merger = CheckpointMerger([parts], result)
    >>> merger.merge_if_changed().rows, merger.merge_if_changed()
    (4, None)
    >>> result.newest().model.n_learned
    4
    >>> result.close()
    """

    def __init__(self, sources: Sequence[Path | str], checkpoints: Checkpoints, trusted: bool = False) -> None:
        self._sources, self._checkpoints, self._trusted = list(sources), checkpoints, trusted
        self._followed: dict[Path | str, Any] = {}
        self._newest: dict[Path | str, Checkpoint] = {}  # of each folder or topic
        for folder in self._sources:
            if isinstance(folder, Path) and not folder.is_dir():
                raise CheckpointError(f"{folder} is not a folder of checkpoints: name one that a learner writes")
        newest, self._rows = checkpoints.newest(), 0
        if newest is not None:
            if newest.header.get("kind") != _KIND:
                raise CheckpointError(f"{checkpoints.path} holds checkpoints of a learner, not merged models: give another place")
            newest.check_row_count(checkpoints.path)
            self._rows = newest.header["rows"]
        self._list_places()

    def merge_if_changed(self) -> MergeResult | None:
        """If a folder has a newer model than at the previous call, merge the newest models of all folders into one, and save it
        as a checkpoint. Return the row counts of the merged model and of its parts; None if there was nothing new to merge.

        Return None if no model has changed, or no folder has a model yet. If a checkpoint is unreadable, warn once, and use the
        previous model of its folder.

        Raises
        ------
        CheckpointError
            The merged model cannot be written; the models read their rows in different ways, or cannot be merged; or they have
            read fewer rows than the merged model that exists, and none was rolled back: a part may have started from scratch.
        """
        if not self._read_changed_parts():
            return None
        parts = {path: self._newest[path] for path in self._list_places() if path in self._newest}
        options = [_get_reading_options(checkpoint) for checkpoint in parts.values()]
        paths = [str(path) for path in parts]
        for path, path_options in zip(paths, options, strict=True):
            if path_options != options[0]:
                flags = " and with ".join(_format_differences(options[0], path_options))
                text = f"{paths[0]} and {path} have read their rows differently, with {flags}"
                raise CheckpointError(f"{text}: learn all with the same flags")
        counts = {path: part.header["rows"] for path, part in parts.items()}
        rows = sum(counts.values())
        if rows < self._rows:
            text = f"{self._checkpoints.path} holds a model of {self._rows:,} rows, and the parts have {rows:,} together"
            if not any(saved.is_aside for path in parts for saved in self._followed[path].history()):
                raise CheckpointError(f"{text}: has one started from scratch? Give another place for the merged model")
            warn(f"{text}, as one was rolled back: they are merged again")
        try:
            model = merge_models([part.model for part in parts.values()])
        except ValueError as error:
            raise CheckpointError(f"{format_names(paths, _MAX_NAMED_FOLDERS)}: {error}") from error
        short_names = [Path(path).name for path in counts]
        names = dict(zip(short_names if len({*short_names}) == len(counts) else paths, counts.values(), strict=True))
        positions = [dict(facts) for part in parts.values() if "partition" in (facts := part.get_facts("position"))]
        facts = {"kind": _KIND, "parts": names, "positions": positions, "weight": options[0].get("weight")}
        self._checkpoints.save(model, None, rows=rows, position=options[0], **facts)
        self._rows = rows
        return MergeResult(rows, names)

    def _list_places(self) -> list[Path | str]:
        """Return the folders and topics whose models are merged. A folder with subfolders ``partition-*`` is replaced by them.
        Raise a CheckpointError if one is listed twice, or is also that of the merged model.
        """
        places: dict[Path, Path | str] = {}
        for source in self._sources:
            folders = sorted(Path(source).glob(_PARTITION_PATTERN), key=lambda path: make_natural_sort_key(path.name))
            paths: list[Path | str] = [*folders] or [source]
            for path in paths:
                if (real := Path(path).resolve()) in places:  # a URL is like the path of a missing folder here
                    raise CheckpointError(f"{path} is named twice: its rows would count twice")
                places[real] = path
        output = self._checkpoints.path
        if Path(output).resolve() in places:
            raise CheckpointError(f"{output} holds checkpoints of a learner: give another place")
        return list(places.values())

    def _read_changed_parts(self) -> bool:
        """Read the newest checkpoint of each folder that has a new one since the previous call. Return whether there was a new
        checkpoint.
        """
        changed = False
        for path in self._list_places():
            try:
                if path not in self._followed:
                    self._followed[path] = open_followed(path, self._trusted)
                if (checkpoint := self._followed[path].read_changed()) is not None:
                    self._newest[path], changed = checkpoint, True
            except CheckpointError as error:
                consequence = "the earlier model stays" if path in self._newest else "the others are merged without it"
                warn(f"{error}: {consequence}")
        return changed

    def close(self) -> None:
        """Close the connections to the topics of checkpoints."""
        for models in self._followed.values():
            models.close()


def _format_differences(options: Mapping[str, Any], other_options: Mapping[str, Any]) -> list[str]:
    """Format the reading options that differ between two models as flags: those of the first, and those of the second model."""
    sides = [{**side, **side.get("table", {})} for side in (options, other_options)]
    for side, kinds in zip(sides, select_different_kinds(*(side.get("columns", {}) for side in sides)), strict=True):
        side["columns"] = kinds
        side.pop("table", None)
    pairs = zip(sides, reversed(sides), strict=True)
    return [
        format_flags({n: value for n, value in a.items() if value not in (None, b.get(n))}) or "the defaults" for a, b in pairs
    ]


def _get_reading_options(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the entries of a checkpoint that say how rows were read (label, weight, column kinds, key, time). Models can only be
    merged if these are equal.
    """
    facts = {**checkpoint.get_facts("position"), "weight": checkpoint.header.get("weight")}
    return {name: facts[name] for name in _READING_OPTIONS if facts.get(name) is not None}
