"""Rights that a user lacks: the operation, the resource and the user, and what gives the right."""

from __future__ import annotations

from kafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)


def missing_right(
    user: str, error: BaseException, operation: str, *topics: str, group: str | None = None, identity: str | None = None
) -> str | None:
    """Return which right an error says is missing; None if it is about something else.

    ``operation`` is what was to be done with one of the topics; the consumer group and the transactional id are those that were
    used.

    >>> print(missing_right("alice", TopicAuthorizationFailedError(), "Write", "scores"))
    the user 'alice' lacks the right Write of the topic 'scores'. Give it: kafka-acls.sh --add --allow-principal 'User:alice' ...
    """
    rights: tuple[tuple[type[BaseException], str, str, tuple[str | None, ...]], ...] = (
        (TopicAuthorizationFailedError, operation, "topic", topics),
        (GroupAuthorizationFailedError, "Read", "group", (group,)),
        (TransactionalIdAuthorizationFailedError, "Write", "transactional-id", (identity,)),
        (ClusterAuthorizationFailedError, "IdempotentWrite", "cluster", ()),
    )
    for kind, what, resource, names in rights:
        if isinstance(error, kind) or kind.__name__ in str(error):  # kafka-python raises some as a text only
            of = " ".join([f"the {resource}", " or ".join(map(repr, filter(None, names)))]).rstrip()
            flags = " ".join(f"--{resource} {name}" for name in filter(None, names)) or f"--{resource}"
            return (
                f"the user {user!r} lacks the right {what} of {of}. Give it: kafka-acls.sh --add --allow-principal 'User:{user}' "
                f"--operation {what} {flags}"
            )
    return None
