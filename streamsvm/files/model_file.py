"""Files of models: contents as bytes, and writing them to disk as a whole."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from streamsvm.files.container import Container, CorruptFileError, ModelFileError, pack_container
from streamsvm.files.messages import MissingPackageError
from streamsvm.files.tree import read_tree, write_tree

_TREE, _METADATA = "tree", "metadata"
_LONGEST_INT = 300  # digits: any such int is a float too
_DIGITS = bytes(ord("0") if chr(byte).isdecimal() else ord(" ") for byte in range(256))  # for each byte, whether it is a digit


#: An object with one of these methods is a model.
_METHODS = ("predict_one", "predict", "score_one", "transform_one", "transform", "learn_one", "fit")


def is_model(value: Any) -> bool:
    """Whether an object can learn, predict or transform rows, as all models do and transformers in front of them.

    >>> from streamsvm import BSGDClassifier
    >>> [is_model(value) for value in (BSGDClassifier(), BSGDClassifier, 7, None)]
    [True, False, False, False]
    """
    return not isinstance(value, type) and any(hasattr(value, method) for method in _METHODS)


def serialize_parts(
    parts: Mapping[str, Any],
    facts: Mapping[str, Any],
    trusted: bool = False,
    strings: Mapping[str, str] = MappingProxyType({}),
    arrays_beside: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> bytes:
    """Return the bytes of a file, which could be read back. Equal parts and facts give equal bytes.

    ``parts`` are objects by their names; the model is ``"model"``. ``facts`` are what can be read without them, as JSON, with the
    ``versions`` of packages and a ``digest`` of the parts. ``strings`` and ``arrays_beside`` are further contents of the
    file, by names that are not numbers: a program. Where it is ``trusted``, the parts may hold classes and functions of the
    user's own. Raises ModelFileError if a part is of a type that no file holds, or could not be read back.
    """
    try:
        tree, arrays = write_tree(dict(parts), trusted)
        read_tree(tree, arrays, trusted)  # one that cannot be read would otherwise be noticed when it is needed
    except ModelFileError:
        raise
    except Exception as error:  # a class of the user's own can raise anything
        raise ModelFileError(f"it could not be loaded again: {type(error).__name__}: {error}") from error
    digest = hashlib.sha256(tree)
    for array in arrays:
        digest.update(array.ravel().data)
    facts = {**facts, "digest": digest.hexdigest(), "versions": package_versions()}
    try:
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
        # Of what JSON can be written of, only long ints are not read again.
        if b"0" * _LONGEST_INT in text.encode().translate(_DIGITS):
            _read_facts(text)
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"the position of the source or the sink is not plain JSON: {error}") from error
    named = {str(number): array for number, array in enumerate(arrays)}
    return pack_container({_TREE: np.frombuffer(tree, np.uint8), **named, **arrays_beside}, {_METADATA: text, **strings})


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that a file says."""
    return {name: _version_of(name) for name in ("numpy", "river", "streamsvm")}


_version_of = cache(version)  # it reads a file


def read_metadata(container: Container) -> dict[str, Any]:
    """Read the facts of a file, which were given to `serialize_parts`."""
    if container.strings.get("kind") == "program":
        raise ModelFileError("it holds a program alone, which streamsvm.edge.load reads: save the model to continue learning")
    try:
        facts = _read_facts(container.strings[_METADATA])
        if isinstance(facts, dict):
            return facts
    except (KeyError, ValueError, RecursionError):
        pass
    raise CorruptFileError("it says nothing of itself")


def _read_facts(text: str) -> Any:
    return json.loads(text, parse_constant=_finite_number, parse_float=_finite_number, parse_int=_short_integer)


def _finite_number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{value} is no number of a fact")
    return value


def _short_integer(text: str) -> int:
    if len(text) > _LONGEST_INT:
        raise ValueError(f"an int has {len(text):,} digits")
    return int(text)


def read_parts(container: Container, trusted: bool = False) -> dict[str, Any]:
    """Read the objects of a file, which were given to `serialize_parts`.

    Raises ModelFileError if the file names classes or functions that are not of streamsvm or river and is not ``trusted``, its
    model needs a package that is not installed, or its contents do not fit together.
    """
    try:
        tree = container.arrays[_TREE]
        arrays: list[np.ndarray] = []
        while (name := str(len(arrays))) in container.arrays:
            arrays.append(container.arrays[name])
        parts = read_tree(tree.tobytes(), arrays, trusted)
        if isinstance(parts, dict) and "model" in parts:
            return parts
    except ModelFileError:
        raise
    except MissingPackageError as error:
        raise ModelFileError(str(error)) from error
    except Exception as error:  # the checks of a class of streamsvm, or a class of the user's own, can raise anything
        raise ModelFileError(f"this version cannot read it ({type(error).__name__}: {error})") from error
    raise ModelFileError("it holds no model")


def write_file(path: Path, data: bytes) -> None:
    """Write a file wholly or not at all, even if the machine stops in the middle; a ModelFileError if it cannot be written."""
    write_files({path: data})


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write files that belong together, as `write_file` does: where one cannot be written, all are as they were.

    A kill in mid-write leaves ``NAME.*.part`` beside them. Where a path is a link, the link stays and its file is replaced.
    """
    own = f".{os.getpid()}-{threading.get_ident()}.part"  # others may write the same file now
    paths = [Path(os.path.realpath(path)) for path in contents]
    parts = [path.with_name(path.name + own) if path.name else path for path in paths]
    try:
        for path in paths:
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if path.exists() and not path.is_file():
                raise OSError(errno.EINVAL, "it is a device or a pipe, and no file")  # which would be replaced by one
        for part, data in zip(parts, contents.values(), strict=True):
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        with _writing_alone(paths[0].parent) if len(paths) > 1 else contextlib.nullcontext():
            for part, path in zip(parts, paths, strict=True):
                part.replace(path)
        for folder in {path.parent for path in paths}:
            sync_folder(folder)
    except OSError as error:
        for part in parts:
            with contextlib.suppress(OSError):  # a full disk has better use for its bytes
                part.unlink()
        raise ModelFileError(f"{error.strerror}") from error


@contextlib.contextmanager
def _writing_alone(folder: Path) -> Iterator[None]:
    """Keep others, who write the same files, waiting: else the first file could be of one writer, and the second of another."""
    if not hasattr(os, "O_DIRECTORY"):
        yield
        return
    import fcntl  # noqa: PLC0415 - not on Windows

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Flush the entries of a folder to disk, after files were created, renamed or removed; no effect on Windows."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
