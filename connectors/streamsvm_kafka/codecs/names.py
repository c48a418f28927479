"""Codecs by name: which there are, and headers of messages that name one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from streamsvm.files.messages import shown
from streamsvm_kafka.codecs.arrow import ArrowCodec
from streamsvm_kafka.codecs.avro import AvroCodec
from streamsvm_kafka.codecs.float32 import Float32Codec
from streamsvm_kafka.codecs.json_rows import JSONCodec
from streamsvm_kafka.codecs.npy import NpyCodec
from streamsvm_kafka.codecs.protocol import Codec

#: The codecs that a URL can name. One whose rows have no names takes ``n_features``, the others the name of the label.
CODECS: dict[str, Any] = {
    "json": JSONCodec,
    "float32": Float32Codec,
    "arrow": ArrowCodec,
    "npy": NpyCodec,
    "avro": AvroCodec,
}

#: Names of the header, without regard to capitals: HTTP's, as frameworks for Kafka write it, and our own.
_HEADERS = frozenset(("content-type", "contenttype", "content_type", "codec"))
#: The names that a content type may have for a codec, beside ``application/NAME`` and ``application/SOMETHING+NAME``.
_CONTENT_TYPES = {
    "text/json": "json",
    "avro/binary": "avro",
    "application/x-avro": "avro",
    "application/x-npy": "npy",
    "application/vnd.apache.arrow.stream": "arrow",
}
#: Says nothing but that there are bytes.
_ANY = "application/octet-stream"


def names_format(header: str) -> bool:
    """Whether a header says in which format the value of its message is."""
    return header.lower() in _HEADERS


def check_headers(headers: Iterable[tuple[str, bytes | None]], codec: Codec) -> None:
    """Check that no header of a message names another codec than that of its topic.

    Such a message would be misread, for example packed numbers of one layout as those of another.

    Parameters
    ----------
    headers
        Names and values. Only headers named ``codec`` or ``content-type`` are looked at; messages need none.
    codec
        Codec of the topic.

    Raises
    ------
    ValueError
        A header names another codec, or one that is not known.

    Examples
    --------
    >>> from streamsvm_kafka.codecs import JSONCodec
    >>> check_headers([("trace", b"17"), ("Content-Type", b"application/json; charset=utf-8")], JSONCodec("y"))
    >>> check_headers([("codec", b"float32")], JSONCodec("y"))
    Traceback (most recent call last):
        ...
    ValueError: its header 'codec' says 'float32', but the topic is read with codec=json
    """
    for header, value in headers:
        if not value or not names_format(header):
            continue
        said = value[:200].decode("utf-8", "replace").partition(";")[0].strip(" \t\"'").lower()
        if said != _ANY and (found := _codec_of(said)) != codec.name:
            known = "" if found in CODECS else " (an unknown codec)"
            raise ValueError(f"its header {header!r} says {shown(said)}{known}, but the topic is read with codec={codec.name}")


def _codec_of(said: str) -> str:
    if said in _CONTENT_TYPES:
        return _CONTENT_TYPES[said]
    kind, _, name = said.rpartition("/")
    return name.rpartition("+")[2] if kind in ("", "application") else said
