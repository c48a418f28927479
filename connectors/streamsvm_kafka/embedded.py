"""A Kafka broker inside this process, for demonstrations and tests."""

from __future__ import annotations

from typing import Any, Self

from streamsvm.files.messages import missing_package_error


class EmbeddedBroker:
    """A Kafka broker inside this process, for demonstrations and tests.

    It is the mock cluster of confluent-kafka: one broker on a free port, without JVM or files. It implements Kafka's protocol,
    and keeps its messages in memory while the context is open. It differs from a real broker: a partition silently drops all
    but its last 5 MiB; the first message creates a topic, with four partitions and without an id; and there are no
    transactions, no retention, no compaction, no groups of several members and no access rights.

    It does not report its version to kafka-python, so pass ``client`` to every client, or use `url`. confluent-kafka needs
    neither.

    Attributes
    ----------
    bootstrap : str
        ``host:port`` of the broker.
    client : dict
        Options for every client of this broker.

    Raises
    ------
    ModuleNotFoundError
        confluent-kafka is not installed (extra ``demo``).
    RuntimeError
        When you enter the context: the broker did not start.

    Examples
    --------
    >>> with EmbeddedBroker() as broker:
    ...     broker.url("rows", codec="float32", features=22)
    'kafka://127.0.0.1:.../rows?api_version=2.3&codec=float32&features=22'
    """

    def __init__(self) -> None:
        try:
            from confluent_kafka import Producer  # noqa: PLC0415 - of an extra
        except ImportError as error:
            raise missing_package_error("EmbeddedBroker", "confluent-kafka", "demo", error) from error
        self._client_class: Any = Producer
        self.bootstrap: str = ""
        self.client: dict[str, Any] = {"api_version": (2, 3)}

    def __enter__(self) -> Self:
        # The mock cluster exists as long as the client that created it.
        self._cluster = self._client_class({"test.mock.num.brokers": 1, "bootstrap.servers": "unused", "log_level": 0})
        brokers = self._cluster.list_topics(timeout=10).brokers
        if not brokers:
            raise RuntimeError("the embedded broker did not start")
        (broker,) = brokers.values()
        self.bootstrap = f"{broker.host}:{broker.port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    def url(self, topic: str, **parameters: object) -> str:
        """Return the ``kafka://`` URL of ``topic`` on this broker, with ``parameters`` after ``?``, as `open_source`, `open_sink`
        and the command line take it.
        """
        pairs = "".join(f"&{name}={value}" for name, value in parameters.items())
        return f"kafka://{self.bootstrap}/{topic}?api_version=2.3{pairs}"
