"""Sources and sinks by URL, as the command line names them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from streamsvm.stream.endpoints import StreamError
from streamsvm_kafka.checkpoints import FollowedTopic, TopicCheckpoints
from streamsvm_kafka.codecs import CODECS, AvroCodec, MessageCodec, SchemaRegistry
from streamsvm_kafka.connection import ENVIRONMENT_PREFIX, Connection, client_options, is_secret
from streamsvm_kafka.partitions import PartitionWorker
from streamsvm_kafka.sink import KafkaSink
from streamsvm_kafka.source import KafkaSource

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\s:@\[\]]+)(:[0-9]{1,5})?")
_COUNTED = [name for name, kind in CODECS.items() if not kind.has_names]
_NAMED = [name for name in CODECS if name not in _COUNTED]
_SOURCE_FORM = (
    f"kafka://host:port/topic?codec={_NAMED[0]} (or {', '.join(_NAMED[1:])}), or "
    f"kafka://host:port/topic?codec={_COUNTED[0]}&features=22 (or {', '.join(_COUNTED[1:])})"
)
_SINK_FORM = "kafka://host:port/topic"
_MODEL_FORM = "kafka://host:port/topic?name=rows"


def open_source(
    url: str,
    *,
    label: str | None,
    stop_at_end: bool,
    start: str | None = None,
    group: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> KafkaSource:
    """Open ``kafka://host:port/topic`` as a `KafkaSource`.

    Several brokers are separated by commas. After ``?`` come parameters, joined by ``&``:

    - ``codec``: format of the messages. ``json`` (the default; one object each), ``avro`` (one record), ``float32`` (one packed
      row), or with many rows in each message, ``arrow`` or ``npy``.
    - ``features``: number of features of a row of ``float32`` or ``npy``. Their label is the last number, and needs no name.
    - options of the connection (see `client_options`), except passwords.

    ``label`` is the name of the label's field or column. ``options`` are those of the connection; others come from the
    environment. The other parameters are those of `KafkaSource`. Raise a StreamError if the URL has a mistake.

    Examples
    --------
    >>> open_source("kafka://localhost:9092/rows?codec=float32", label=None, stop_at_end=True)
    Traceback (most recent call last):
        ...
    streamsvm.stream.endpoints.StreamError: kafka://localhost:9092/rows: codec=float32 needs the number...
    """
    bootstrap, topic, client, parameters = _parsed_url(url, ("codec", "features"), _SOURCE_FORM, options)
    codec = _codec_of(url, parameters, label, client)
    return KafkaSource(bootstrap, topic, codec, stop_at_end=stop_at_end, start=start, group=group, client=client)


def open_worker(
    url: str, *, label: str | None, start: str | None = None, options: Mapping[str, Any] | None = None, **how: Any
) -> PartitionWorker:
    """Open ``kafka://host:port/topic`` as a `PartitionWorker`, whose other parameters follow, by a URL as in `open_source`."""
    bootstrap, topic, client, parameters = _parsed_url(url, ("codec", "features"), _SOURCE_FORM, options)
    codec = _codec_of(url, parameters, label, client)
    return PartitionWorker(bootstrap, topic, codec, start=start, client=client, **how)


def open_sink(url: str, *, options: Mapping[str, Any] | None = None) -> KafkaSink:
    """Open ``kafka://host:port/topic`` as a `KafkaSink`. Only options of the connection may follow after ``?``."""
    bootstrap, topic, client, _ = _parsed_url(url, (), _SINK_FORM, options)
    return KafkaSink(bootstrap, topic, client=client)


class _Checkpoints(TopicCheckpoints):
    """Checkpoints in a topic, whose sinks are named by URL."""

    def try_open_sink(self, url: str, options: Mapping[str, Any] | None = None) -> KafkaSink | None:
        """Open a topic as a sink whose messages are committed with the checkpoints; None where it is of another cluster."""
        if not url.startswith("kafka://"):
            return None
        bootstrap, topic, client, _ = _parsed_url(url, (), _SINK_FORM, options)
        return self.open_sink(topic) if self.is_on_cluster_of(bootstrap, client) else None


def open_checkpoints(
    url: str,
    *,
    sources: Iterable[str],
    group: str | None = None,
    trusted: bool = False,
    options: Mapping[str, Any] | None = None,
) -> TopicCheckpoints:
    """Open ``kafka://host:port/topic?name=rows`` as `TopicCheckpoints` of a learner that reads ``sources``, URLs or paths.

    Without ``name``, the model is named after the first source: its topic, or its file without suffixes. The offsets of the
    ``group`` are committed with the checkpoints if all sources are topics of this cluster; otherwise, the result has no group.
    Raise a StreamError if the URL has a mistake, or there is no name.
    """
    bootstrap, topic, client, parameters = _parsed_url(url, ("name",), _MODEL_FORM, options)
    inputs = list(sources)
    name = parameters.get("name") or default_model_name(inputs[0])
    if name is None:
        raise _url_mistake(url, "which name is the model to have in the topic?", _MODEL_FORM)
    opened = _Checkpoints(bootstrap, topic, name, trusted=trusted, client=client)
    try:
        topics = [_parsed_url(each.partition("?")[0], (), _SINK_FORM, options) for each in inputs if each.startswith("kafka://")]
        for other, read, how, _ in topics:  # before anything is written there
            if opened.is_same_topic(Connection(other, how), read):
                raise StreamError(f"{url.partition('?')[0]} is read by this run: give checkpoints a topic of their own")
        if group is not None and len(topics) == len(inputs):
            opened.group = group if all(opened.is_on_cluster_of(other, client) for other, *_ in topics) else None
    except BaseException:
        opened.close()
        raise
    return opened


def open_models(url: str, *, trusted: bool = False, options: Mapping[str, Any] | None = None) -> FollowedTopic:
    """Open ``kafka://host:port/topic?name=rows`` as a `FollowedTopic`, to read the newest model and newer ones as they come.

    The parameters are those of `open_checkpoints`. Raise a StreamError if the URL has a mistake, or has no name.
    """
    bootstrap, topic, client, parameters = _parsed_url(url, ("name",), _MODEL_FORM, options)
    if "name" not in parameters:
        raise _url_mistake(url, "which model of the topic? Say its name", _MODEL_FORM)
    return FollowedTopic(bootstrap, topic, parameters["name"], trusted=trusted, client=client)


def default_model_name(source: str) -> str | None:
    """Return the name that the model of a stream has in a model topic; None where the stream has none.

    >>> default_model_name("kafka://localhost:9092/rows?codec=float32&features=2"), default_model_name("data/clicks.csv.gz")
    ('rows', 'clicks')
    >>> default_model_name("-") is None
    True
    """
    if "://" in source:
        return unquote(urlsplit(source).path).strip("/") or None
    return re.sub(r"[^a-zA-Z0-9_-]", "-", Path(source).name.partition(".")[0]).strip("-") or None


def _codec_of(url: str, parameters: dict[str, str], label: str | None, options: Mapping[str, Any]) -> MessageCodec:
    name, features = parameters.get("codec", "json"), parameters.get("features")
    if name not in CODECS:
        raise _url_mistake(url, f"codec={name} is none of {', '.join(CODECS)}", _SOURCE_FORM)
    kind: Any = CODECS[name]
    if name in _COUNTED:
        if features is None or not re.fullmatch("[0-9]{1,9}", features, re.ASCII):
            raise _url_mistake(url, f"codec={name} needs the number of features of a row, such as features=22", _SOURCE_FORM)
        try:
            return kind(int(features))
        except ValueError as error:
            raise _url_mistake(url, str(error), _SOURCE_FORM) from error
    if features is not None:
        raise _url_mistake(
            url, f"features belongs to codec={' and '.join(_COUNTED)}; rows of {name} name their features", _SOURCE_FORM
        )
    if kind is not AvroCodec:
        return kind(label)
    registry = SchemaRegistry.of(options)
    if registry is None:
        place = "STREAMSVM_KAFKA_SCHEMA_REGISTRY_URL in the environment, or the option schema_registry_url"
        raise _url_mistake(url, f"codec=avro needs the address of the schema registry: {place}", _SOURCE_FORM)
    return AvroCodec(label, registry)


def _parsed_url(
    url: str, known: tuple[str, ...], form: str, options: Mapping[str, Any] | None
) -> tuple[str, str, dict[str, Any], dict[str, str]]:
    """Return the brokers, the topic, the options of the connection, and the ``known`` parameters of a URL."""
    parts = urlsplit(url)
    topic = unquote(parts.path).strip("/")
    if parts.scheme != "kafka" or not parts.netloc or not topic or "/" in topic:
        raise _url_mistake(url, "not the address of a topic", form)
    if "@" in parts.netloc:
        # The URL is not quoted: it holds a password.
        raise StreamError(f"a Kafka URL takes no user or password. Expected {form}")
    for address in parts.netloc.split(","):
        if not _ADDRESS.fullmatch(address):
            raise _url_mistake(url, f"{address!r} is not host:port", form)
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    client = {name: parameters.pop(name) for name in list(parameters) if name not in ("codec", "features", "name")}
    if secret := next((name for name in client if is_secret(name)), None):
        variable = ENVIRONMENT_PREFIX + secret.upper().replace(".", "_")
        raise _url_mistake(url, f"passwords do not belong into a URL: give {variable} in the environment", form)
    if unknown := sorted(parameters.keys() - set(known)):
        there = f"there are {', '.join(known)} and" if known else "there are only"
        raise _url_mistake(url, f"unknown parameter {unknown[0]!r}; {there} options of the connection", form)
    return parts.netloc, topic, client_options({**(options or {}), **client}), parameters


def _url_mistake(url: str, reason: str, form: str) -> StreamError:
    shown = url.partition("?")[0]  # what comes then may hold a password
    return StreamError(f"{shown}: {reason}. Expected {form}")
