"""Opens sources, sinks and checkpoints by the URL of a topic, as the command line does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from streamsvm.stream.endpoints import StreamError
from streamsvm_kafka.checkpoints import TopicCheckpoints
from streamsvm_kafka.codecs import CODECS, MessageCodec, RegistryCodec, SchemaRegistry
from streamsvm_kafka.connection import ENVIRONMENT_PREFIX, Connection, client_options, is_secret
from streamsvm_kafka.followed_topic import FollowedTopic
from streamsvm_kafka.partitions import PartitionWorker
from streamsvm_kafka.sink import KafkaSink
from streamsvm_kafka.source import KafkaSource
from streamsvm_kafka.topics import TopicEndpoint

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\s:@\[\]]+)(:[0-9]{1,5})?")
_CODECS_WITHOUT_NAMES = [name for name, kind in CODECS.items() if not kind.has_names]
_CODECS_WITH_NAMES = [name for name in CODECS if name not in _CODECS_WITHOUT_NAMES]
_SOURCE_FORMAT = (
    f"kafka://host:port/topic?codec={_CODECS_WITH_NAMES[0]} (or {', '.join(_CODECS_WITH_NAMES[1:])}), or "
    f"kafka://host:port/topic?codec={_CODECS_WITHOUT_NAMES[0]}&features=22 (or {', '.join(_CODECS_WITHOUT_NAMES[1:])})"
)
_SINK_FORMAT = "kafka://host:port/topic"
_MODEL_FORMAT = "kafka://host:port/topic?name=rows"


def open_source(url: str, *, label: str | None, options: Mapping[str, Any] | None = None, **parameters: Any) -> KafkaSource:
    """Open the topic in a URL ``kafka://host:port/topic?codec=...`` as a stream of rows, a `KafkaSource`. ``label`` is the name
    of the label's field, ``options`` are options of the connection, and ``parameters`` those of `KafkaSource`, such as ``start``.

    Several brokers are separated by commas. Parameters after ``?`` are separated by ``&``:

    - ``codec``: format of the messages. ``json`` (the default; one object each), ``registry`` (one Avro, Protobuf or JSON
      record with a schema in a registry; also called ``avro``), ``float32`` (one packed row), or with many rows in each message,
      ``arrow`` or ``npy``.
    - ``features``: number of features of a row of ``float32`` or ``npy``. Their label is the last number, without a name.
    - options of the connection (see `client_options`), except passwords.

    ``label`` is the name of the label's field or column. ``options`` are options of the connection, in addition to those of the
    URL and the environment. Raise a StreamError if the URL is invalid.

    Examples
    --------
    >>> open_source("kafka://localhost:9092/rows?codec=float32", label=None, stop_at_end=True)
    Traceback (most recent call last):
        ...
    streamsvm.stream.endpoints.StreamError: kafka://localhost:9092/rows: codec=float32 needs the number...
    """
    bootstrap, topic, client, query = _parse_url(url, ("codec", "features"), _SOURCE_FORMAT, options)
    codec = _make_codec(url, query, label, client)
    return KafkaSource(bootstrap, topic, codec, client=client, **parameters)


def open_worker(
    url: str, *, label: str | None, start: str | None = None, options: Mapping[str, Any] | None = None, **parameters: Any
) -> PartitionWorker:
    """Open the topic in a URL ``kafka://host:port/topic?codec=...`` as a `PartitionWorker`, a member of a consumer group that
    learns a model for each partition, or predicts its rows. ``label`` is the name of the label's field, and ``start`` says where
    to begin. ``parameters`` are other parameters of `PartitionWorker`; its ``folder`` may be the URL of a topic of checkpoints.
    """
    bootstrap, topic, client, query = _parse_url(url, ("codec", "features"), _SOURCE_FORMAT, options)
    codec = _make_codec(url, query, label, client)
    if "://" in str(place := parameters["folder"]):
        address, models, store_client, names = _parse_url(place, ("name",), _MODEL_FORMAT, options)
        prefix = names.get("name", parameters["group"])
        kept = {name: value for name, value in parameters.items() if name in ("trusted", "keep", "keep_every")}
        kept["client"] = store_client
        parameters["folder"] = lambda number: _CheckpointsByURL(address, models, f"{prefix}-{number}", **kept)
    return PartitionWorker(bootstrap, topic, codec, start=start, client=client, **parameters)


def open_sink(url: str, *, options: Mapping[str, Any] | None = None) -> KafkaSink:
    """Open the topic in a URL ``kafka://host:port/topic`` for writing predictions, as a `KafkaSink`. ``options`` of the
    connection may also follow after ``?`` in the URL.
    """
    bootstrap, topic, client, _ = _parse_url(url, (), _SINK_FORMAT, options)
    return KafkaSink(bootstrap, topic, client=client)


class _CheckpointsByURL(TopicCheckpoints):
    """Checkpoints in a topic whose sinks are opened by URL."""

    def try_open_sink(self, url: str, options: Mapping[str, Any] | None = None) -> KafkaSink | None:
        """Open the topic in a ``kafka://`` URL as a sink whose messages are committed together with these checkpoints. Return
        None if it is another kind of URL, or a topic of another cluster.
        """
        if not url.startswith("kafka://"):
            return None
        bootstrap, topic, client, _ = _parse_url(url, (), _SINK_FORMAT, options)
        return self.open_sink(topic) if self.is_on_cluster_of(bootstrap, client) else None


def open_checkpoints(
    url: str,
    *,
    sources: Iterable[str],
    group: str | None = None,
    options: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> TopicCheckpoints:
    """Open the topic in a URL ``kafka://host:port/topic?name=rows`` to write checkpoints of the model ``name`` to it. ``sources``
    are the URLs or paths that the learner reads, and ``group`` is its consumer group. ``parameters`` are further ones of
    `TopicCheckpoints`, such as ``trusted``.

    Without ``name``, the model is named after the first source: its topic, or its file without suffixes. The offsets of the
    ``group`` are committed with the checkpoints if all sources are topics of this cluster; otherwise, the result has no group.
    Raise a StreamError if the URL is invalid, or the model has no name.
    """
    bootstrap, topic, client, query = _parse_url(url, ("name",), _MODEL_FORMAT, options)
    inputs = list(sources)
    name = query.get("name") or default_model_name(inputs[0])
    if name is None:
        raise _url_error(url, "name the model in the topic with ?name=...", _MODEL_FORMAT)
    place = TopicEndpoint(Connection(bootstrap, client), topic)
    urls = [source.partition("?")[0] for source in inputs if source.startswith("kafka://")]
    topics = [_parse_url(source_url, (), _SINK_FORMAT, options)[:3] for source_url in urls]
    if any(place.is_same_topic(Connection(b, c), t) for b, t, c in topics):  # checked before a running learner is fenced
        raise StreamError(f"{url.partition('?')[0]} is read by this run: give checkpoints a topic of their own")
    if group is not None and not (len(topics) == len(inputs) and all(place.is_on_cluster_of(b, c) for b, _, c in topics)):
        group = None
    return _CheckpointsByURL(bootstrap, topic, name, group=group, client=client, **parameters)


def open_models(url: str, *, trusted: bool = False, options: Mapping[str, Any] | None = None) -> FollowedTopic:
    """Open the topic in a URL ``kafka://host:port/topic?name=rows`` to read the newest checkpoint of the model ``name``, and
    later ones as they are written. ``trusted`` allows models with classes and functions of your own.

    The parameters are those of `open_checkpoints`. Raise a StreamError if the URL is invalid, or has no ``name``.
    """
    bootstrap, topic, client, query = _parse_url(url, ("name",), _MODEL_FORMAT, options)
    if "name" not in query:
        raise _url_error(url, "which model of the topic? Say its name", _MODEL_FORMAT)
    return FollowedTopic(bootstrap, topic, query["name"], trusted=trusted, client=client)


def default_model_name(source: str) -> str | None:
    """Return a name for the model that learns from ``source``, a URL or path: the topic, or the file's name without suffixes;
    None if it has neither, as standard input.

    >>> default_model_name("kafka://localhost:9092/rows?codec=float32&features=2"), default_model_name("data/clicks.csv.gz")
    ('rows', 'clicks')
    >>> default_model_name("-") is None
    True
    """
    if "://" in source:
        return unquote(urlsplit(source).path).strip("/") or None
    return re.sub(r"[^a-zA-Z0-9_-]", "-", Path(source).name.partition(".")[0]).strip("-") or None


def _make_codec(url: str, query: dict[str, str], label: str | None, options: Mapping[str, Any]) -> MessageCodec:
    """Create the codec that decodes the messages of a topic. ``query`` contains the URL's parameters ``codec`` and ``features``,
    ``label`` is the name of the label's field, and ``options`` are those of the connection. Raise a StreamError if they are
    invalid.
    """
    name, features = query.get("codec", "json"), query.get("features")
    codec_class: Any = CODECS.get(name)
    try:
        if codec_class is None:
            raise ValueError(f"codec={name} is none of {', '.join(CODECS)}")
        if name in _CODECS_WITHOUT_NAMES:
            if features is None or not re.fullmatch("[0-9]{1,9}", features, re.ASCII):
                raise ValueError(f"codec={name} needs the number of features of a row, such as features=22")
            return codec_class(int(features))
        if features is not None:
            raise ValueError(
                f"features belongs to codec={' and '.join(_CODECS_WITHOUT_NAMES)}; rows of {name} name their features"
            )
        return RegistryCodec(label, SchemaRegistry.from_options(options)) if codec_class is RegistryCodec else codec_class(label)
    except (StreamError, ValueError) as error:
        raise _url_error(url, str(error), _SOURCE_FORMAT) from error


def _parse_url(
    url: str, valid_names: tuple[str, ...], url_format: str, options: Mapping[str, Any] | None
) -> tuple[str, str, dict[str, Any], dict[str, str]]:
    """Split a ``kafka://`` URL into brokers, topic, options of the connection, and the other parameters after ``?``, whose names
    must be among ``valid_names``.

    ``options`` are added to those of the URL. Raise a StreamError that shows the ``url_format`` if the URL is invalid.
    """
    parts = urlsplit(url)
    topic = unquote(parts.path).strip("/")
    if parts.scheme != "kafka" or not parts.netloc or not topic or "/" in topic:
        raise _url_error(url, "not the address of a topic", url_format)
    if "@" in parts.netloc:
        # The message does not contain the URL, because that contains a password.
        raise StreamError(f"a Kafka URL takes no user or password. Expected {url_format}")
    for address in parts.netloc.split(","):
        if not _ADDRESS.fullmatch(address):
            raise _url_error(url, f"{address!r} is not host:port", url_format)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    client = {name: query.pop(name) for name in list(query) if name not in ("codec", "features", "name")}
    if secret := next((name for name in client if is_secret(name)), None):
        variable = ENVIRONMENT_PREFIX + secret.upper().replace(".", "_")
        raise _url_error(url, f"passwords do not belong into a URL: give {variable} in the environment", url_format)
    if unknown := sorted(query.keys() - set(valid_names)):
        available = f"there are {', '.join(valid_names)} and" if valid_names else "there are only"
        raise _url_error(url, f"unknown parameter {unknown[0]!r}; {available} options of the connection", url_format)
    return parts.netloc, topic, client_options({**(options or {}), **client}), query


def _url_error(url: str, reason: str, url_format: str) -> StreamError:
    """Return the StreamError for an invalid URL, with ``reason`` and the expected ``url_format``. The parameters after ``?`` are
    not shown, as they may contain a password.
    """
    address = url.partition("?")[0]  # the parameters may contain a password
    return StreamError(f"{address}: {reason}. Expected {url_format}")
