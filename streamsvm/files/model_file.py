"""Serialises models to the bytes of a file and back, and writes files atomically."""

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

_TREE_NAME, _METADATA_NAME = "tree", "metadata"
_MAX_INT_DIGITS = 300  # any such int can be converted to a float, too
_DIGIT_MASK = bytes(ord("0") if chr(byte).isdecimal() else ord(" ") for byte in range(256))  # maps digits to 0, others to blanks
_MODEL_METHODS = ("predict_one", "predict", "score_one", "transform_one", "transform", "learn_one", "fit")


def is_model(value: Any) -> bool:
    """Return whether an object looks like a model or transformer: it is not a class, and has at least one method such as
    ``predict_one``, ``fit`` or ``transform``.

    >>> from streamsvm import BSGDClassifier
    >>> [is_model(value) for value in (BSGDClassifier(), BSGDClassifier, 7, None)]
    [True, False, False, False]
    """
    return not isinstance(value, type) and any(hasattr(value, method) for method in _MODEL_METHODS)


def serialize_parts(
    parts: Mapping[str, Any],
    metadata: Mapping[str, Any],
    trusted: bool = False,
    strings: Mapping[str, str] = MappingProxyType({}),
    extra_arrays: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> bytes:
    """Serialise ``parts``, a dict of named objects such as the ``"model"``, with JSON ``metadata``, to the bytes of a model file.
    ``strings`` and ``extra_arrays`` are further contents, such as an exported form of the model. If ``trusted``, parts may
    contain the user's own classes. Equal arguments give equal bytes.

    ``metadata`` can be read without the parts; package ``versions`` and a ``digest`` of the parts are added. The names of
    ``extra_arrays`` must not be numbers. Raises ModelFileError if a part has an unsupported type, or could not be read back.
    """
    try:
        tree, arrays = write_tree(dict(parts), trusted)
        read_tree(tree, arrays, trusted)  # fail now rather than when the file is needed
    except ModelFileError:
        raise
    except Exception as error:  # the user's own classes can raise anything
        raise ModelFileError(f"it could not be loaded again: {type(error).__name__}: {error}") from error
    digest = hashlib.sha256(tree)
    for array in arrays:
        digest.update(array.ravel().data)
    metadata = {**metadata, "digest": digest.hexdigest(), "versions": get_package_versions()}
    try:
        text = json.dumps(metadata, sort_keys=True, separators=(",", ":"), allow_nan=False)
        # Python writes longer integers than it reads: check those before they are in a file.
        if b"0" * _MAX_INT_DIGITS in text.encode().translate(_DIGIT_MASK):
            _parse_metadata(text)
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"the position of the source or the sink is not plain JSON: {error}") from error
    numbered = {str(number): array for number, array in enumerate(arrays)}
    all_arrays = {_TREE_NAME: np.frombuffer(tree, np.uint8), **numbered, **extra_arrays}
    return pack_container(all_arrays, {_METADATA_NAME: text, **strings})


def get_package_versions() -> dict[str, str]:
    """Return the installed versions of numpy, river and streamsvm as a dict by package name, for model files."""
    return {name: _get_version(name) for name in ("numpy", "river", "streamsvm")}


_get_version = cache(version)  # version() reads a file


def read_metadata(container: Container) -> dict[str, Any]:
    """Return the metadata dict of a model file, parsed from the JSON string in its ``container`` (its named arrays and strings).

    Raises ModelFileError if the file contains a program only, and CorruptFileError if its metadata are invalid.
    """
    if container.strings.get("kind") == "program":
        raise ModelFileError("it holds a program alone, which streamsvm.edge.load reads: save the model to continue learning")
    try:
        metadata = _parse_metadata(container.strings[_METADATA_NAME])
        if isinstance(metadata, dict):
            return metadata
    except (KeyError, ValueError, RecursionError):
        pass
    raise CorruptFileError("it has no valid metadata")


def _parse_metadata(text: str) -> Any:
    """Parse the JSON text of a model file's metadata. Raises ValueError if it is not JSON, a number is infinite or NaN, or an
    integer has more than 300 digits.
    """
    return json.loads(text, parse_constant=_parse_finite, parse_float=_parse_finite, parse_int=_parse_short_int)


def _parse_finite(text: str) -> float:
    """Parse the text of a JSON number to a float, as a hook of the JSON parser. Raises ValueError if it is infinite or NaN."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    return value


def _parse_short_int(text: str) -> int:
    """Parse the text of a JSON integer, as a hook of the JSON parser. Raises ValueError if it has over 300 digits."""
    if len(text) > _MAX_INT_DIGITS:
        raise ValueError(f"an int has {len(text):,} digits")
    return int(text)


def read_parts(container: Container, trusted: bool = False) -> dict[str, Any]:
    """Deserialise the named objects of a model file, among them the ``"model"``, from its ``container`` (its named arrays and
    strings). If ``trusted``, classes from outside streamsvm and river, and pickles, which can run any code, are loaded, too.

    Raises ModelFileError if the file is not ``trusted`` and names classes or functions from outside streamsvm and river, its
    model needs a package that is not installed, or its contents are inconsistent.
    """
    try:
        tree = container.arrays[_TREE_NAME]
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
    except Exception as error:  # the checks of streamsvm's classes, and the user's own classes, can raise anything
        raise ModelFileError(f"this version cannot read it ({type(error).__name__}: {error})") from error
    raise ModelFileError("it holds no model")


def write_file(path: Path, data: bytes) -> None:
    """Write ``data`` to a file atomically and durably: after a crash, ``path`` has either its old or its new content. Raises
    ModelFileError if it cannot be written.
    """
    write_files({path: data})


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write several files that belong together; ``contents`` is a dict of path to bytes. Each file is replaced atomically. If one
    cannot be written to disk, none of them is replaced, and ModelFileError is raised.

    Raises ModelFileError then. If the process is killed meanwhile, temporary files ``NAME.*.part`` remain. If a path is a
    symbolic link, the link stays and its target is replaced.
    """
    suffix = f".{os.getpid()}-{threading.get_ident()}.part"  # unique, because others may write the same file now
    paths = [Path(os.path.realpath(path)) for path in contents]
    parts = [path.with_name(path.name + suffix) if path.name else path for path in paths]
    try:
        for path in paths:
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if path.exists() and not path.is_file():
                raise OSError(errno.EINVAL, "it is a device or a pipe, not a file")  # it would be replaced by a file
        for part, data in zip(parts, contents.values(), strict=True):
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        with _lock_folder(paths[0].parent) if len(paths) > 1 else contextlib.nullcontext():
            for part, path in zip(parts, paths, strict=True):
                part.replace(path)
        for folder in {path.parent for path in paths}:
            sync_folder(folder)
    except OSError as error:
        for part in parts:
            with contextlib.suppress(OSError):  # the disk may be full: free its space
                part.unlink()
        raise ModelFileError(f"{error.strerror}") from error


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Context manager: hold an exclusive lock on a folder while the body runs, so that only one process at a time writes files
    there. Has no effect on Windows.
    """
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
    """Flush the directory entries of a folder to disk (fsync), so that files created, renamed or removed in it survive a crash.
    Has no effect on Windows.
    """
    if not hasattr(os, "O_DIRECTORY"):
        return
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
