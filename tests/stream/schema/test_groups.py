"""Whole numbers that are ids of groups (devices, shops) become categories, and quantities stay numbers, judged by the labels."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from streamsvm import table_model
from streamsvm.stream.schema.codes import are_group_ids

N = 1500
NOTE = "looks like an id of a group"
KEY_NOTE = f"{NOTE}; perhaps a key, which remembers its last labels"


def draw_labels(ids, rng, kind="number"):
    """Draw labels that depend on the id of the group, and not on the order of the ids."""
    effects = rng.normal(size=int(max(ids)) + 1)[ids.astype(int)]
    if kind == "number":
        return effects + rng.normal(size=len(ids))
    return np.array(["low", "middle", "high"])[np.digitize(effects + 0.5 * rng.normal(size=len(ids)), [-0.5, 0.5])]


def are_group_ids_in_naive_way(numbers, labels, min_gain):
    """Return whether an unnamed column has ids of groups: a slow and obvious twin for numeric labels without missing values."""
    rows = [(x, y) for i, (x, y) in enumerate(zip(numbers, labels, strict=True)) if x != numbers[i - 1]]
    ordered = sorted(y for _, y in rows)
    ranks = {y: ordered.index(y) + ordered.count(y) / 2 for y in set(ordered)}
    mean = np.mean([ranks[y] for _, y in rows])
    groups = {}
    for x, y in rows:
        groups.setdefault(x, []).append(ranks[y] - mean)
    ids = sorted(groups)
    if len(ids) < 8 or len(ids) < 0.8 * ids[-1]:
        return False
    errors = []
    for place, number in enumerate(ids):
        ys = groups[number]
        near = [
            [y for i in range(place - r, place + r + 1) if i in range(len(ids)) for y in groups[ids[i]]] for r in (1, 2, 4, 8)
        ]
        guesses = [0.0, *((sum(y) - sum(ys)) / (len(y) - len(ys) + 1) for y in near)]
        by_group = np.mean([(y - (sum(ys) - y) / len(ys)) ** 2 for y in ys])
        errors.append([*(np.mean([(y - guess) ** 2 for y in ys]) for guess in guesses), by_group])
    variance, *by_order, by_group = np.mean(errors, axis=0)
    gains = [[row[i] - row[-1] for row in errors] for i in range(5)]
    is_certain = all(np.mean(gain) > min_gain * np.std(gain) / math.sqrt(len(ids)) for gain in gains)
    explained = variance - by_group
    return is_certain and explained >= 0.05 * variance and 0.5 * explained >= variance - min([variance, *by_order])


@pytest.mark.parametrize("name", ["x7", "device"])
@pytest.mark.parametrize("kind", ["number", "class"])
def test_ids_of_groups_are_recognised(name, kind):
    rng = np.random.default_rng(1)
    ids = rng.integers(1, 46, N)
    labels = draw_labels(ids, rng, kind)
    table = pd.DataFrame({name: ids, "size": rng.normal(size=N), "y": labels})
    model = table_model(table, label="y")
    column = model.schema.columns[0]
    assert (column.name, column.kind, column.note) == (name, "category", KEY_NOTE if name == "device" else NOTE)
    assert column.values.endswith("... (45)")
    assert ".0" not in column.values
    assert f"(columns='{name}:{'key' if name == 'device' else 'number'}')" in str(model.schema)
    assert table_model(table, label="y", columns=f"{name}:number").schema.columns[0].kind == "number"


def draw_quantities():
    """Yield a name, a column and labels: of quantities, and of ids that predict the label no better than their order does."""
    rng = np.random.default_rng(2)
    noise = rng.normal(size=N)
    hour, month, age, rooms = rng.integers(0, 24, N), rng.integers(1, 13, N), rng.integers(18, 80, N), rng.integers(1, 10, N)
    yield "hour", hour, np.sin(hour / 24 * 2 * np.pi) + np.sin(hour / 12 * 2 * np.pi) + noise
    yield "month", month, np.cos(month / 12 * 2 * np.pi) + 0.5 * noise
    yield "age", age, np.where((age + noise > 30) & (age + noise < 50), "yes", "no")
    yield "rooms", rooms, 20.0 * rooms + 10.0 * noise
    cigarettes = np.where(rng.random(N) < 0.7, 0, rng.integers(1, 20, N))
    yield "cigarettes", cigarettes, (cigarettes == 0) + 0.1 * noise  # one special number
    yield "grade", rng.integers(0, 13, N), noise
    yield "device", rng.integers(0, 30, N), noise  # no group predicts
    device = rng.integers(0, 30, N)
    yield "device", device, device + noise  # its order predicts
    pupil = np.repeat(np.arange(N // 10), 10)
    score = np.repeat(rng.integers(0, 40, N // 10), 10)
    yield "score", score, np.repeat(rng.normal(size=N // 10), 10)  # a quantity of a pupil, whose rows are sorted
    yield "pupil", pupil, np.repeat(rng.normal(size=N // 10), 10)
    votes = rng.integers(0, 40, 40)[device] * 97
    yield "votes", votes, draw_labels(device, rng)  # a quantity of a device: many whole numbers are unused
    yield "depth", device - 3, draw_labels(device, rng)
    yield "level", device / 2, draw_labels(device, rng)


@pytest.mark.parametrize("i", range(13))
def test_quantities_stay_numbers(i):
    name, numbers, labels = list(draw_quantities())[i]
    column = table_model(pd.DataFrame({name: numbers, "y": labels}), label="y").schema.columns[0]
    assert (column.kind, NOTE in column.note) == ("number", False)


def test_rule_equals_its_naive_twin():
    rng = np.random.default_rng(3)
    answers = []
    for i in range(40):
        n_groups = int(rng.integers(5, 60))
        numbers = rng.integers(1, n_groups + 1, int(rng.integers(100, 500))).astype(float)
        effect, trend = rng.choice([0.0, 1.0, 3.0], 2)
        effects = effect * rng.choice([-1.0, 1.0], n_groups + 1)[numbers.astype(int)]
        labels = (effects + trend * numbers / n_groups + rng.normal(size=len(numbers))).round(1)
        answers.append(are_group_ids("x7", numbers, labels.tolist()))
        assert answers[-1] == are_group_ids_in_naive_way(numbers.tolist(), labels.tolist(), 4.0), i
    assert 8 <= sum(answers) <= 32


def test_missing_numbers_and_labels_are_left_out():
    rng = np.random.default_rng(4)
    ids = rng.integers(1, 61, N).astype(float)
    labels = draw_labels(ids, rng).tolist()
    ids[rng.random(N) < 0.2] = np.nan
    assert are_group_ids("x7", ids, [None if i % 9 == 0 else label for i, label in enumerate(labels)])
    ids = rng.integers(1, 61, N).astype(float)
    few_labels = [("low", "high")[int(ids[i]) * 7 % 31 % 2] if i % 3 == 0 else (None, "", math.nan)[i % 7 % 3] for i in range(N)]
    assert are_group_ids("x7", ids, few_labels)
    assert not are_group_ids("x7", np.full(50, np.nan), labels[:50])
    assert not are_group_ids("device", np.where(ids > 20, np.inf, ids), [None] * N)
    assert not are_group_ids("device", np.ones(50), labels[:50])


def test_formats_are_read_alike(tmp_path):
    rng = np.random.default_rng(5)
    ids = rng.integers(1, 46, N)
    table = pd.DataFrame({"x7": ids, "size": rng.normal(size=N).round(3), "y": draw_labels(ids, rng, "class")})
    rows = table.to_dict("records")
    table.to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    for data in (table, rows, str(tmp_path / "rows.csv"), str(tmp_path / "rows.jsonl")):
        column = table_model(data, label="y").schema.columns[0]
        assert (column.name, column.kind, column.note) == ("x7", "category", NOTE)
