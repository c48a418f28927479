"""A naive implementation of learning with delayed labels, and random streams of rows and labels to compare it on."""

import itertools
import json
import math
import random

from river import metrics

from loops import make_model
from saved import dumps
from streamsvm.stream import DelayedLabels
from streamsvm.stream.checkpoint import read_newest

LABEL_FATES = ["joined", "early", "expired_labels", "duplicate_labels", "late_labels"]
FATES = [*LABEL_FATES, "features", "pending", "expired_age", "expired_count", "duplicate_rows", "labels", "refused"]


def streams(seed, n, max_age, early=0.1, late=0.1, twice=0.05, never=0.02):
    """Return random rows and labels, each ordered by time; some labels are early, late, or duplicates, and some have no row."""
    rng = random.Random(seed)
    rows, labels = [], []
    for i in range(n):
        x = {"a": rng.uniform(-2, 2), "b": rng.uniform(-2, 2)}
        key, time, y = f"k{i}" if i % 3 else i, float(i), x["a"] * x["b"] > 0
        rows.append({"id": key, "t": time, **x})
        kind = rng.random()
        if kind < early:
            delay = -rng.uniform(0.0, max_age / 2)
        elif kind < early + late:
            delay = max_age + rng.uniform(1.0, max_age / 2)
        elif kind < early + late + never:
            delay = None
            labels.append({"id": f"nobody {i}", "t": time, "y": y})
        else:
            delay = rng.uniform(0.0, max_age)
        if delay is not None:
            labels.append({"id": key, "t": time + delay, "y": y})
        if rng.random() < twice:
            rows.append({"id": key, "t": time + rng.uniform(0.0, max_age / 2), "a": 9.0, "b": 9.0})
        if rng.random() < twice and delay is not None:
            labels.append({"id": key, "t": time + delay + rng.uniform(0.0, max_age / 2), "y": not y})
    return sorted(rows, key=lambda row: row["t"]), sorted(labels, key=lambda label: label["t"])


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def correct_times(messages, max_age):
    """Return the messages of one stream with non-decreasing times, and with times of single wrong clocks replaced."""
    slack, last_time, corrected = min(3600.0, max(10.0, max_age / 4)), -math.inf, []
    for message, following in itertools.zip_longest(messages, messages[1:]):
        time = message["t"]
        if time > last_time + slack and following is not None and following["t"] < time - slack:
            time = following["t"]
        last_time = max(last_time, time)
        corrected.append({**message, "t": last_time})
    return corrected


def with_wrong_clocks(messages, seed, seconds):
    """Return the messages with 2 % of their times ``seconds`` ahead."""
    rng = random.Random(seed)
    return [{**message, "t": message["t"] + seconds * (rng.random() < 0.02)} for message in messages]


def replay(rows, labels, model, max_age, max_rows=10**9, negative=None):
    """Learn the streams in memory, with linear search in lists. Return the metric, and the numbers of rows and labels by fate."""
    events = [(row["t"], 0, row) for row in rows] + [(label["t"], 1, label) for label in labels]
    counts, metric = dict.fromkeys(FATES, 0), metrics.Accuracy()
    waiting, early, settled = [], [], []  # entries are tuples of time, key and more

    def find(entries, key):
        return next((entry for entry in entries if entry[1] == key), None)

    def learn(x, y, predicted):
        model.learn_one(x, y)
        if predicted is not None:
            metric.update(y, predicted)

    def expire(entry, now, reason):
        waiting.remove(entry)
        settled.append((now, entry[1], True))
        counts[f"expired_{reason}"] += 1
        if negative is not None:
            learn(entry[2], negative, entry[3])

    for now, kind, event in sorted(events, key=lambda event: event[:2]):
        settled[:] = [entry for entry in settled if entry[0] >= now - max_age]
        counts["expired_labels"] += sum(entry[0] < now - max_age for entry in early)
        early[:] = [entry for entry in early if entry[0] >= now - max_age]
        for entry in [entry for entry in waiting if entry[0] < now - max_age]:
            expire(entry, now, "age")
        key = str(event["id"])
        settled_entry = find(settled, key)
        if kind == 0:
            counts["features"] += 1
            if settled_entry or find(waiting, key):
                counts["duplicate_rows"] += 1
            else:
                x = {"a": event["a"], "b": event["b"]}
                predicted = model.predict_one(x)
                if label := find(early, key):
                    early.remove(label)
                    settled.append((now, key, False))
                    counts["joined"] += 1
                    learn(x, label[2], predicted)
                else:
                    waiting.append((now, key, x, predicted))
        else:
            counts["labels"] += 1
            if settled_entry:
                counts["late_labels" if settled_entry[2] else "duplicate_labels"] += 1
            elif row := find(waiting, key):
                waiting.remove(row)
                settled.append((now, key, False))
                counts["joined"] += 1
                learn(row[2], event["y"], row[3])
            elif find(early, key):
                counts["duplicate_labels"] += 1
            else:
                early.append((now, key, event["y"]))
        while len(early) > max_rows:
            early.pop(0)
            counts["expired_labels"] += 1
        while len(waiting) > max_rows:
            expire(waiting[0], now, "count")
        while len(settled) > max_rows:
            settled.pop(0)
    return metric, counts | {"pending": len(waiting), "early": len(early)}


def check_sums(counts, rows, labels, refused=0):
    """Check that each row and each label has exactly one fate."""
    expired = sum(counts[f"expired_{reason}"] for reason in ("age", "count", "bytes"))
    assert counts["expired_rows"] == expired
    assert counts["features"] == counts["joined"] + expired + counts["duplicate_rows"] + counts["pending"]
    assert counts["labels"] == sum(counts[fate] for fate in LABEL_FATES)
    assert counts["features"] + counts["labels"] + refused == rows + labels


def check_replayed(folder, rows, labels, max_age):
    """Check that the newest checkpoint of a run equals a replay."""
    checkpoint, model, delayed = read_newest(folder), make_model(), DelayedLabels()
    metric, counts = replay(rows, labels, model, max_age)
    assert dumps(checkpoint.model) == dumps(model)
    assert dumps(checkpoint.state["scores"]["scores"][0]["metric"]) == dumps(metric)
    delayed.restore(checkpoint.header["delayed"], checkpoint.state["waiting"])
    assert {name: delayed.counts[name] for name in FATES} == counts
    check_sums(delayed.counts, len(rows), len(labels))
