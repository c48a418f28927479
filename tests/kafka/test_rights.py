"""The rights that docs/kafka.md names are enough, and each that is missing is named."""

import uuid

import pytest
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

from patience import PATIENCE
from streamsvm.stream.endpoints import Row
from streamsvm_kafka import JSONCodec, publish

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("client_library")]

LEARNER = [("topic", "rows", "Read"), ("group", "group", "Read"), ("topic", "out", "Write")]
MODELS = [("topic", "models", "Write"), ("topic", "models", "Read"), ("transactional-id", "id", "Write")]
CASES = {
    "learner": LEARNER,
    "exactly once": LEARNER + MODELS,
    "worker": LEARNER[:2],
    "follower": [LEARNER[0], LEARNER[2], MODELS[1]],
}
TYPES = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP, "transactional-id": ResourceType.TRANSACTIONAL_ID}


@pytest.mark.parametrize("case", CASES)
def test_rights(case, client_library, broker, as_alice, rules, producer, new_topic, tmp_path, call, caplog):
    names = {"rows": new_topic(), "out": new_topic(), "models": new_topic(**{"cleanup.policy": "compact"})}
    names |= {"group": uuid.uuid4().hex, "id": f"streamsvm-{names['models']}-{names['rows']}"}
    publish([Row({"a": float(i % 7)}, i % 2) for i in range(50)], broker.plaintext, names["rows"], JSONCodec("y"))
    url = {name: f"kafka://{broker.sasl_ssl}/{topic}" for name, topic in names.items()}
    state, flags = iter(range(100)), ["--columns", "a:number", "--learner", "bsgd"]

    def words():
        learn = ["learn", url["rows"], "--label", "y", "--stop-at-end", *flags]
        grouped = [*learn, "--group", names["group"]]
        folder = tmp_path / f"state {next(state)}"
        if case == "follower":
            folder = ["--model", f"{url['models']}?name={names['rows']}", "--follow", "--to", url["out"], "--stop-at-end"]
            return ["predict", url["rows"], *folder]
        if case == "worker":
            return [*grouped, "--scope", "partition", "--checkpoint", folder]
        return [*grouped, "--to", url["out"], "--checkpoint", url["models"] if case == "exactly once" else folder]

    if case == "follower":
        call("learn", url["rows"], "--label", "y", "--stop-at-end", "--checkpoint", url["models"], *flags)

    def rule(kind, name, operation, permission):
        pattern = ResourcePattern(TYPES[kind], names[name])
        return ACL("User:alice", "*", ACLOperation[operation.upper()], permission, pattern)

    rights = [rule(*right, ACLPermissionType.ALLOW) for right in CASES[case]]
    closed = [ACL("User:nobody", "*", ACLOperation.ALL, ACLPermissionType.ALLOW, acl.resource_pattern) for acl in rights]
    with rules(*rights, *closed):
        call(*words())
        for kind, name, operation in CASES[case] if case != "learner" else [LEARNER[1]]:  # the others are of the second case, too
            refusal = rule(kind, name, operation, ACLPermissionType.DENY)
            said = f"the user 'alice' lacks the right {operation} of the {kind} {names[name]!r} (see \"Access rights\""
            caplog.clear()
            producer.send(names["rows"], b'{"a": 1.0, "y": 1}').get(PATIENCE)
            nothing_depends = case == "learner" and name == "group"
            with rules(refusal):
                message = call(*words(), status=0 if nothing_depends else 1).stderr
            if nothing_depends:
                assert said in caplog.text
            else:
                # librdkafka does not say which of the topics of a transaction it is.
                several = names["models"] in message and names["out"] in message and client_library != "kafka-python"
                assert said in message or (several and "the user 'alice' lacks the right Write of the topic" in message), message


def test_the_topic_of_models_that_may_not_be_made(broker, as_alice, rules, new_topic, call):
    name = f"streamsvm-test-{uuid.uuid4().hex[:12]}"
    rows, models = (f"kafka://{broker.sasl_ssl}/{topic}" for topic in (new_topic(), name))
    refusal = ACL("User:alice", "*", ACLOperation.CREATE, ACLPermissionType.DENY, ResourcePattern(ResourceType.TOPIC, name))
    allowed = ACL("User:alice", "*", ACLOperation.DESCRIBE, ACLPermissionType.ALLOW, refusal.resource_pattern)
    of_cluster = ResourcePattern(ResourceType.CLUSTER, "kafka-cluster")
    denial = ACL("User:alice", "*", ACLOperation.CREATE, ACLPermissionType.DENY, of_cluster)
    words = ["learn", rows, "--label", "y", "--stop-at-end", "--checkpoint", models]
    with rules(refusal, allowed, denial):
        call(*words, status=1, says=f"the user 'alice' lacks the right Create of the topic '{name}'")
