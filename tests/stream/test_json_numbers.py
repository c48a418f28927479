"""JSON lines that are read by names which are known give what they give one by one, with msgspec and without it."""

import json
import math
import random
import sys

import numpy as np
import pytest

from json_messages import NAMES, message
from saved import dumps
from streamsvm import BSGDClassifier, BSGDRegressor
from streamsvm.stream import FileSink, JSONLinesSource, LearningLoop
from streamsvm.stream.json_numbers import JSONNumbers


@pytest.fixture(params=["msgspec", "json"])
def parser(request, monkeypatch):
    if request.param == "json":
        monkeypatch.setitem(sys.modules, "msgspec", None)
    return request.param


@pytest.mark.parametrize("label", ["y", None])
def test_what_is_read_is_what_json_reads(label):
    rng, numbers, accepted = random.Random(1), JSONNumbers(label), 0
    names = [*NAMES, "y"] if label is None else NAMES
    for _ in range(10_000):
        text = message(rng, label)
        if (found := numbers.decode([text], names)) is None:
            continue
        accepted += 1
        row = json.loads(text)
        y = None if label is None else row.pop(label, None)
        assert row.keys() == set(names)
        assert found[0].tobytes() == np.array([[float(row[name]) for name in names]]).tobytes()
        assert not any(isinstance(value, bool | str) for value in row.values())
        assert (type(found[1][0]), found[1]) == (type(y), [y])
    assert accepted > 1000


def test_nothing_is_read_without_a_parser(parser):
    text = b'{"a": 1, "b.c": 2.5, "y": true}'
    found = JSONNumbers("y").decode([text, text], ["a", "b.c"])
    assert (found is None) == (parser == "json")


class OneByOne(JSONLinesSource):
    def _rows_at_hand(self, most):
        return []


def lines_of(rng, n, regression):
    lines = []
    for i in range(n):
        if rng.random() < 0.95 or i < 50:
            x = {name: rng.gauss(0.0, 1.0) for name in NAMES}
            lines.append(json.dumps({**x, "y": x["a"] if regression else x["a"] > 0.0}).encode())
        else:
            lines.append(
                rng.choice([b"", b" ", b"[1]", message(rng, "y").replace(b"\n", b" "), b"  " + lines[0], lines[0] + b"\r"])
            )
    return b"\n".join(lines)


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_a_file_leaves_the_bytes_of_its_rows_one_by_one(tmp_path, parser, seed, regression):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(lines_of(random.Random(seed), 2500, regression))
    found = []
    for kind in (OneByOne, JSONLinesSource):
        model = (BSGDRegressor if regression else BSGDClassifier)(20, seed=0)
        letters, predictions = tmp_path / "letters.jsonl", tmp_path / "predictions.jsonl"
        with kind(path, "y") as source, FileSink(predictions) as sink:
            loop = LearningLoop(source, model, sink=sink, on_error=str(letters), error_share=1.0)
            end = loop.run()
            refused = [{**json.loads(line), "time": None} for line in letters.read_bytes().splitlines()]
            found.append((dumps(loop.model), predictions.read_bytes(), refused, source.position, loop.curve.state, end.metric))
        letters.unlink()
    assert found[0] == found[1]
    assert len(found[0][2]) > 20
    assert math.isfinite(found[0][-1])


def test_usual_lines_are_read_without_a_dict_each(tmp_path, monkeypatch):
    path, rng = tmp_path / "rows.jsonl", random.Random(0)
    path.write_text("".join(json.dumps({"a": rng.random(), "b": i % 9, "y": i % 9 > 4}) + "\n" for i in range(4000)))
    parsed, read = [], JSONLinesSource._parse
    monkeypatch.setattr(JSONLinesSource, "_parse", lambda self, line: parsed.append(line) or read(self, line))
    with JSONLinesSource(path, "y") as source:
        LearningLoop(source, BSGDClassifier(20)).run()
    assert len(parsed) == 800  # after these, points of the learning curve are far enough from each other


def test_rows_that_come_after_the_end_are_for_the_next_run(tmp_path):
    path, line = tmp_path / "rows.jsonl", b'{"a": 1, "y": 0}\n'
    path.write_bytes(line * 3)
    with JSONLinesSource(path, "y") as source:
        assert len(source.take(10)) == 3
        assert source.take(10) is None
        with path.open("ab") as file:
            file.write(line)
        assert source.take(10) is None
        position = source.position
    with JSONLinesSource(path, "y") as source:
        source.seek(position)
        rows = source.take(10)
        assert (len(rows), source.place_of(0), source.raw_of(0)) == (1, f"{path}, line 4", line)
