"""Sources and sinks by their names on a command line: a path, ``-``, or a URL."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import PurePath
from typing import Any

from streamsvm.runtime.endpoints import Sink, Source, StreamError
from streamsvm.runtime.sinks import FileSink
from streamsvm.runtime.sources import FORMATS

__all__ = ["format_of", "open_sink", "open_source"]

_SUFFIXES = (
    {".csv": "csv"} | dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl") | dict.fromkeys((".libsvm", ".svm", ".t"), "libsvm")
)


def format_of(spec: str, format: str | None = None) -> str | None:  # noqa: A002
    """The format of a text stream, from ``format`` or else from the suffix; None for a URL.

    Raises
    ------
    StreamError
        Neither names one.

    Examples
    --------
    >>> format_of("rows.csv.gz"), format_of("-", "libsvm"), format_of("kafka://host:9092/topic")
    ('csv', 'libsvm', None)
    """
    if "://" in spec:
        return None
    if format is None:
        suffix = PurePath(spec.removesuffix(".gz")).suffix.lower()
        format = _SUFFIXES.get(suffix)  # noqa: A001
    if format not in FORMATS:
        raise StreamError(
            f"{spec}: of what format? Suffixes that say it are {', '.join(_SUFFIXES)}; else name the format: {', '.join(FORMATS)}"
        )
    return format


def open_source(spec: str, *, label: str | None = None, format: str | None = None, stop_at_end: bool = False) -> Source:  # noqa: A002
    """Open the source that ``spec`` names.

    Parameters
    ----------
    spec
        A path, ``"-"`` for standard input, or a URL whose scheme a package has registered.
    label
        Name of the label. In LIBSVM text it comes first and has no name.
    format
        ``"csv"``, ``"jsonl"`` or ``"libsvm"``; None if the suffix of the path tells.
    stop_at_end
        End an endless stream where it ended when it was opened.

    Returns
    -------
    Source

    Raises
    ------
    StreamError
        It cannot be opened.
    """
    kind = format_of(spec, format)
    if kind is None:
        return _plugin("streamsvm.sources", spec)(spec, label=label, stop_at_end=stop_at_end)
    return FORMATS[kind](spec, label)


def open_sink(spec: str) -> Sink:
    """Open the sink that ``spec`` names: a path, ``"-"`` for standard output, or a URL whose scheme a package has registered.

    Raises
    ------
    StreamError
        It cannot be opened.
    """
    if "://" in spec:
        return _plugin("streamsvm.sinks", spec)(spec)
    return FileSink(spec)


def _plugin(group: str, url: str) -> Any:
    scheme = url.partition("://")[0]
    found = entry_points(group=group, name=scheme)
    if not found:
        known = ", ".join(sorted(f"{entry.name}://" for entry in entry_points(group=group)))
        raise StreamError(f"{url}: no installed package knows {scheme}://. Known are paths, - and {known}")
    try:
        return next(iter(found)).load()
    except ImportError as error:
        raise StreamError(f"{url}: {error}. Install its packages: pip install 'streamsvm[{scheme}]'") from error
