"""Models saved as files, with the program by which they predict elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streamsvm.edge.program import ProgramError
from streamsvm.edge.reading import NO_PROGRAM, PROGRAM
from streamsvm.export.describe import program_of
from streamsvm.storage.model_file import ModelFileError, to_bytes, write

__all__ = ["save"]


def save(model: Any, path: str | Path, trusted: bool = False) -> None:
    """Save a model, or a pipeline with one, as a file: wholly or not at all.

    `streamsvm.load` reads it, and the model goes on learning. `streamsvm.edge.load` reads it, where there is numpy alone, and
    predicts; what has no form for that is saved without, and the file says why.

    Parameters
    ----------
    model
        Any estimator of streamsvm, or of river, and pipelines of them.
    path
        The file; replaced if there is one.
    trusted
        Whether it may hold classes and functions of your own. To load them, the file must be yours too.

    Raises
    ------
    ModelFileError
        The model holds what no file does, or the file cannot be written.

    Examples
    --------
    >>> import tempfile, pathlib, streamsvm
    >>> model = streamsvm.BSGDClassifier(budget=10)
    >>> model.learn_one({"a": 1.0}, "yes")
    >>> path = pathlib.Path(tempfile.mkdtemp(), "model.safetensors")
    >>> streamsvm.save(model, path)
    >>> streamsvm.load(path).predict_one({"a": 1.0}), streamsvm.edge.load(path).predict_one({"a": 1.0})
    ('yes', 'yes')
    """
    path = Path(path)
    if model is None:
        raise ModelFileError(f"{path} was not written: there is no model, but None")
    try:
        text, arrays = program_of(model).parts()
        strings = {PROGRAM: text}
    except ProgramError as error:
        strings, arrays = {NO_PROGRAM: str(error)}, {}
    try:
        write(path, to_bytes({"model": model}, {"kind": "model"}, trusted, strings, arrays))
    except ModelFileError as error:
        raise ModelFileError(f"{path} was not written: {error}") from error
