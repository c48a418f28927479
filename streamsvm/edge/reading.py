"""Files of models, read for their program: by numpy alone, and checked before anything is computed."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from streamsvm.edge.predictor import Predictor
from streamsvm.edge.program import Program, ProgramError
from streamsvm.files.container import DTYPES, CorruptError, NewerError, read_file, unpack

__all__ = ["NO_PROGRAM", "PROGRAM", "load", "loads", "program_of"]

#: The name of the text that holds a program, in a file of a model.
PROGRAM = "program"
#: The name of the text that says why a file has none.
NO_PROGRAM = "without_program"

_ZIP = b"PK\x03\x04"


def load(path: str | Path) -> Predictor:
    """Load a model to predict with it, with numpy alone.

    Parameters
    ----------
    path
        A file that ``model.save`` or ``streamsvm export --to npz`` wrote.

    Returns
    -------
    Predictor

    Raises
    ------
    ProgramError
        The file cannot be read, is corrupt or of a newer version, or holds a model that only streamsvm itself can predict with.
        The message names the file, and says what to do.
    """
    try:
        data = read_file(Path(path))
    except OSError as error:
        raise ProgramError(f"{path}: {error.strerror}") from error
    return loads(data, str(path))


def loads(data: bytes, name: str = "the model") -> Predictor:
    """Load a model from the bytes of its file, as `load` does; ``name`` stands for the file in messages."""
    try:
        strings, arrays = _npz(data) if data[:4] == _ZIP else _container(data)
        return Predictor(program_of(strings, arrays))
    except ProgramError as error:
        raise ProgramError(f"{name}: {error}") from None


def program_of(strings: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> Program:
    """Return the program of a file; a ProgramError says why there is none."""
    if PROGRAM not in strings:
        reason = strings.get(NO_PROGRAM, "it is a checkpoint, or of an older version: `streamsvm export` makes a file of it")
        raise ProgramError(f"it holds no program to predict by: {reason}")
    return Program.of_parts(strings[PROGRAM], arrays)


def _container(data: bytes) -> tuple[Mapping[str, str], Mapping[str, np.ndarray]]:
    if data[:1] == b"{":
        raise ProgramError("it is JSON, which other programs read: `streamsvm export --to npz` makes a file for numpy")
    try:
        container = unpack(data)
    except CorruptError as error:
        raise ProgramError(f"it is corrupt: {error}") from None
    except NewerError as error:
        raise ProgramError(str(error)) from None
    return container.strings, container.arrays


def _npz(data: bytes) -> tuple[Mapping[str, str], Mapping[str, np.ndarray]]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            # So nothing takes more memory than the file does.
            if any(entry.compress_type for entry in entries) or sum(entry.file_size for entry in entries) > len(data):
                raise ProgramError(
                    "it is compressed, or its parts overlap: `streamsvm export --to npz` makes files of neither kind"
                )
            arrays = {entry.filename.removesuffix(".npy"): _npy(archive.read(entry)) for entry in entries}
        text = arrays.pop(PROGRAM)
        if text.dtype != np.uint8 or text.ndim != 1:
            raise ProgramError("it has no program")
        return {PROGRAM: text.tobytes().decode()}, arrays
    except ProgramError:
        raise
    except Exception as error:  # noqa: BLE001 - zipfile and numpy raise errors of many kinds for what is no such file
        raise ProgramError(f"it is corrupt ({type(error).__name__}: {error})") from None


def _npy(data: bytes) -> np.ndarray:
    """Return the array of a file of numpy; ValueError where it is none, of other types than models have, or cut off."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, columns_first, dtype = read_header(file)
    if dtype not in DTYPES.values() or columns_first or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError("an array is of another type, or order")
    if math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise ValueError("an array does not fill its file")
    return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape)
