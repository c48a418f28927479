"""Models saved as files, with the program by which they predict elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streamsvm.edge.program import ProgramError
from streamsvm.edge.reading import NO_PROGRAM, PROGRAM
from streamsvm.export.describe import program_of
from streamsvm.files.model_file import ModelFileError, to_bytes, write

__all__ = ["save"]


def save(model: Any, path: str | Path, trusted: bool = False) -> None:
    """Save a model, or a pipeline with one, to a file. The file is written completely or not at all.

    `streamsvm.load` reads it back, and the model continues learning. `streamsvm.edge.load` reads it where there is only numpy,
    and predicts. A model that has no form for that is saved without it, and the file says why.

    Parameters
    ----------
    model
        Any estimator of streamsvm or river, or a pipeline of them.
    path
        Path of the file; an existing file is replaced.
    trusted
        Whether the file may hold classes and functions of your own. To load such a file, you have to trust it.

    Raises
    ------
    ModelFileError
        The model holds something that a file cannot hold, or the file cannot be written.

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
