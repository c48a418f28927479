"""Earlier checkpoints in a model topic: which are kept, going back to one of them, copies, and merging."""

import contextlib
import json
import random
import time
import uuid
from types import SimpleNamespace

import pytest
from river import datasets

import history_kills
import kills
from lists import OF_RELEASE
from partition_models import save as save_part
from patience import until
from refused import raises
from streamsvm import BSGDClassifier
from streamsvm.stream import CheckpointFolder
from streamsvm.stream.checkpoint import TakenOverError, find_saved
from streamsvm_kafka import FollowedTopic, TopicCheckpoints, checkpoints

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("client_library")]


@pytest.fixture
def bananas_csv(tmp_path):
    rows = (f"{x['1']!r},{x['2']!r},{y}\n" for x, y in datasets.Bananas().take(600))
    (tmp_path / "rows.csv").write_text("a,b,y\n" + "".join(rows))
    return tmp_path / "rows.csv"


@pytest.fixture
def models(new_topic):
    return new_topic(**{"cleanup.policy": "compact"})


def save(store, rows):
    return store.save(BSGDClassifier(budget=3), None, rows=rows, position={"rows": rows})


def opened(bootstrap, models, **options):
    return TopicCheckpoints(bootstrap, models, "rows", **options)


def history_of(bootstrap, models):
    with contextlib.closing(FollowedTopic(bootstrap, models, "rows")) as followed:
        history = followed.history()
        assert [saved.load().header["rows"] for saved in history] == [saved.rows for saved in history]
        return [[saved.rows for saved in history if saved.is_aside == aside] for aside in (False, True)]


def keys_of(bootstrap, models):
    """Return the keys that compaction would leave."""
    values = {message.key.decode(): message.value for message in kills.committed(bootstrap, models)}
    return sorted(key for key, value in values.items() if value is not None)


def roll_back(bootstrap, models, at):
    with contextlib.closing(FollowedTopic(bootstrap, models, "rows")) as followed, opened(bootstrap, models) as store:
        store.roll_back(find_saved(models, followed.history(), at))


def test_the_newest_are_kept_beside_the_one_of_the_name(bootstrap, models):
    with opened(bootstrap, models, keep=3) as store:
        store.save_start({})
        for rows in (10, 20, 30, 40):
            save(store, rows)
        save(store, 40)
    assert history_of(bootstrap, models) == [[40, 30, 20], []]
    assert keys_of(bootstrap, models) == ["rows", "rows/000000000020", "rows/000000000030", "rows/000000000040"]
    with opened(bootstrap, models, keep=2) as store:
        assert store.newest().header["rows"] == 40
        save(store, 50)
    assert keys_of(bootstrap, models) == ["rows", "rows/000000000040", "rows/000000000050"]
    for rows, options, kept in (
        (60, {}, [60, 50]),
        (70, {"keep": 3}, [70, 60, 50]),
        (80, {}, [80, 70, 60]),
        (90, {"keep": 1}, [90]),
    ):
        with opened(bootstrap, models, **options) as store:
            assert store.newest().header["rows"] == rows - 10
            save(store, rows)
        assert history_of(bootstrap, models) == [kept, []]


def test_without_older_ones_no_other_message_is_written(bootstrap, models):
    for rows in (10, 20):
        with opened(bootstrap, models) as store:
            store.newest()
            save(store, rows)
    assert keys_of(bootstrap, models) == ["rows"]


def test_one_of_each_period_is_kept(bootstrap, models, monkeypatch):
    for i, rows in enumerate((10, 20, 30, 40, 50)):
        clock = SimpleNamespace(time=lambda i=i: 1.7e9 + 40_000 * i, perf_counter=time.perf_counter)  # from 14 November 2023 on
        monkeypatch.setattr(checkpoints, "time", clock)
        with opened(bootstrap, models, keep_every=86_400.0) as store:  # the times are read from the messages
            save(store, rows)
    assert history_of(bootstrap, models) == [[50, 30, 10], []]


def test_a_rollback_is_noticed_and_can_be_undone(bootstrap, models):
    with opened(bootstrap, models, keep=9) as store, contextlib.closing(FollowedTopic(bootstrap, models, "rows", seconds=0)) as f:
        for rows in (10, 20, 30, 40):
            save(store, rows)
        assert f.read_newer().version == 40

        def version():
            newer = f.read_newer()
            return None if newer is None else newer.version

        roll_back(bootstrap, models, 25)
        until(lambda: version() == 20, every=0.05)
        assert history_of(bootstrap, models) == [[20, 10], [40, 30]]
        raises("is fenced", save, store, 50, error=TakenOverError)
        roll_back(bootstrap, models, 40)
        until(lambda: version() == 40, every=0.05)
    assert history_of(bootstrap, models) == [[40, 30, 20, 10], []]
    roll_back(bootstrap, models, 10)
    with opened(bootstrap, models, keep=2) as store:
        assert store.newest().header["rows"] == 10
        save(store, 30)
    assert history_of(bootstrap, models) == [[30, 10], [40]]
    assert keys_of(bootstrap, models) == ["rows", "rows/000000000010", "rows/000000000030", "rows/000000000040"]


def test_a_rollback_without_kept_ones_keeps_the_newest(bootstrap, models, producer):
    with opened(bootstrap, models) as store:
        for rows in (10, 20):
            save(store, rows)
    assert history_of(bootstrap, models) == [[20], []]
    producer.send(models, b"damaged", key=b"rows/000000000015", partition=0)
    producer.send(models, b"of another", key=b"rows/x", partition=0)
    producer.flush()
    roll_back(bootstrap, models, 20)
    assert history_of(bootstrap, models) == [[20], []]
    with opened(bootstrap, models, keep=2) as store:
        save(store, 30)
    roll_back(bootstrap, models, 29)
    assert history_of(bootstrap, models) == [[20], [30]]


def test_commands(bootstrap, new_topic, models, call, tmp_path):
    topic, out = new_topic(), new_topic()
    rows = kills.publish_rows(bootstrap, topic, 600)
    state = f"kafka://{bootstrap}/{models}?name=m"
    learn = ["learn", rows, "--label", "y", "--learner", "bsgd,budget=20", "--checkpoint", state, "--stop-at-end", "--quiet"]
    learn += ["--checkpoint-every", "200", "--to", f"kafka://{bootstrap}/{out}"]
    call(*learn, "--keep-checkpoints", "9", "--max-rows", "500")
    listed = [json.loads(line) for line in call("checkpoints", state, "--json").stdout.splitlines()]
    assert [facts["rows"] for facts in listed] == [500, 400, 200, 0]
    copy = tmp_path / "copy.ckpt"
    call("checkpoints", state, "--copy", copy, "--at", "450")
    assert "400 learned" in call("inspect", copy).stdout
    assert "rows            - 400 learned, 0 refused" in call("diff", copy, state).stdout
    assert call("diff", copy, state, "--json").stdout == call("diff", state, "--at", "400", "--json").stdout
    done = call("rollback", state, "--to", "450")
    assert done.stdout.endswith(f"the next run continues after row 400; to undo this: streamsvm rollback '{state}' --to 500\n")
    call(*learn)
    assert [json.loads(line)["rows"] for line in call("checkpoints", state, "--json").stdout.splitlines()] == [600, 400, 200, 0]
    numbers = [json.loads(message.value)["row"] for message in kills.committed(bootstrap, out)]
    assert numbers == [*range(500), *range(400, 600)]  # those that were committed stay
    call("rollback", state, "--to", "0")
    assert "holds no model yet" in call("inspect", state, status=1).stderr
    call(*learn)
    assert "600 learned" in call("inspect", state).stdout


def test_a_checkpoint_whose_timestamp_no_calendar_has_is_listed(bootstrap, new_topic, producer, call):
    models = new_topic(**{"cleanup.policy": "compact", "message.timestamp.after.max.ms": str(2**63 - 1)})
    with opened(bootstrap, models) as store:
        save(store, 10)
    (message,) = kills.committed(bootstrap, models)
    producer.send(models, message.value, key=b"rows", partition=0, timestamp_ms=2**62)
    producer.flush()
    state = f"kafka://{bootstrap}/{models}?name=rows"
    assert "10 rows  9999-12-31T23:59:59+00:00" in call("checkpoints", state).stdout
    call("rollback", state, "--to", "2030-01-01", status=1, says="holds no checkpoint so early")


def test_a_run_moves_to_a_topic_and_back(bootstrap, models, bananas_csv, tmp_path, call):
    flags = ["--label", "y", "--learner", "bsgd,budget=20", "--max-rows", "100", "--quiet", "--checkpoint"]
    topic, back = f"kafka://{bootstrap}/{models}?name=m", tmp_path / "back"
    back.mkdir()
    call("learn", bananas_csv, *flags, tmp_path / "state")
    call("checkpoints", tmp_path / "state", "--copy", topic)
    with TopicCheckpoints(bootstrap, models, "m") as running:
        newest = running.newest()
        call("checkpoints", tmp_path / "state", "--copy", topic, status=2, says="it has checkpoints already")
        facts = {name: newest.header[name] for name in newest.header if name not in ("kind", "retention")}
        running.save(newest.model, newest.state, **facts)  # it was not fenced
    call("learn", bananas_csv, *flags, topic)
    call("checkpoints", topic, "--copy", back)
    for place in (back, tmp_path / "state", tmp_path / "state"):
        call("learn", bananas_csv, *flags, place)
    assert call("diff", tmp_path / "state", back).stdout == "equal  no difference\n"
    assert "300 learned" in call("inspect", back).stdout


def test_models_of_topics_are_merged(bootstrap, models, tmp_path, call):
    url = f"kafka://{bootstrap}/{models}?name="
    for number in range(2):
        save_part(tmp_path / f"part-{number}", 100, number, label="y")
    with CheckpointFolder(tmp_path / "part-0") as folder, TopicCheckpoints(bootstrap, models, "one") as store:
        checkpoint = folder.newest()
        store.save(checkpoint.model, None, **{name: checkpoint.header[name] for name in ("rows", "position")})
    call("merge", f"{url}one", tmp_path / "part-1", "--to", tmp_path / "merged")
    with CheckpointFolder(tmp_path / "merged") as folder:
        assert folder.newest().header["parts"] == {f"{models}?name=one": 100, "part-1": 100}
    call("merge", f"{url}one", f"{url}one", "--to", tmp_path / "merged", status=1, says="named twice")
    call("merge", f"{url}one", "--to", f"{url}one", status=1, says="not merged models")
    missing = f"kafka://{bootstrap}/missing-{uuid.uuid4().hex}?name=a"
    call("merge", missing, "--to", tmp_path / "other", status=1, says="there is no topic")


@pytest.mark.thorough
def test_kills_lose_no_checkpoint(bootstrap, models):
    """For a release with more kills."""
    seed, kills = random.randrange(10**6), 8 if OF_RELEASE else 3
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    counts = history_kills.kill_often((bootstrap, models), kills, random.Random(seed), *history_kills.SECONDS["topic"])
    assert counts["writing"] + counts["rolling back"] >= kills
