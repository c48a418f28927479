"""The demonstration, as the README calls it."""

import json

import pytest

from forked import CommandsOfPython
from streamsvm.cli import demo
from streamsvm.stream.checkpoint import read_newest

pytestmark = pytest.mark.thorough


def test_the_whole_demonstration(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "subprocess", CommandsOfPython)
    done = call("demo", "--out", "demo")
    *_, learned, _, drawn, inspect_hint = done.stdout.splitlines()
    assert learned.startswith("it learned all 21,200 rows exactly once: model and metrics are those of the first learner")
    assert (drawn, inspect_hint) == ("drawn: demo/learned.png", "look inside with: streamsvm inspect demo/killed/checkpoints")
    assert (tmp_path / "demo" / "learned.png").read_bytes().startswith(b"\x89PNG")
    header = read_newest(tmp_path / "demo" / "killed" / "checkpoints").header
    assert (header["rows"], len(header["curve"]["points"])) == (21_200, 165)
    assert header["scores"][0]["value"] > 0.88
    lines = (tmp_path / "demo" / "killed" / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(line)["row"] for line in lines] == list(range(21_200))
