"""Each pair of options of a run, with each way to continue it: the end is that of a run that was not interrupted."""

import json
import random

import pytest

from pairwise import pairwise
from saved import dumps
from streamsvm.cli.main import main
from streamsvm.stream.checkpoint import read_newest
from streamsvm.stream.rows import find_learner

N, FIRST = 160, 80
FACTORS = {
    "way": ("stop", "rollback", "copy", "next file", "warm start"),
    "source": ("csv", "jsonl", "files"),
    "to": ("", "--to out.csv --passthrough id", "--to out.csv --rotate 1KB", "--to out.jsonl --rotate DAY"),
    "letters": ("--on-error skip", "--on-error bad.jsonl", "--on-error bad.jsonl --rotate 1KB"),
    "learner": ("bsgd,budget=20", "bsca,budget=20", "linear"),
    "answers": ("", "--interval .9", "--threshold F1 --positive yes", "--costs yes=3,no=1", "--key-models c,idle=50"),
    "scores": ("", "--metric LogLoss --window 30", "--drift ADWIN", "--drift PageHinkley(threshold=1) --on-drift reset"),
    "weight": ("w:drop", "--weight w"),
}
EXCLUDED = [("to", to, "letters", "--on-error bad.jsonl") for to in FACTORS["to"] if "rotate" in to]


def write_files(folder):
    """Write two days of rows, each with a row that is refused, in three forms."""
    for day in (1, 2):
        generator, lines, objects = random.Random(day), [], []
        for i in range(N):
            a, b, c = round(generator.gauss(0, 1), 3), round(generator.gauss(0, 1), 3), generator.choice("xyz")
            row = {"id": f"{day}-{i}", "a": a, "b": b, "c": c, "w": i % 3 / 2, "y": "yes" if a * b > 0 or c == "x" else "no"}
            lines.append(",".join(map(str, row.values())))
            objects.append(json.dumps(row))
        lines[20], objects[20], header = "bad", "bad", ",".join(row)
        for name, part in (("", lines), ("-1", lines[:50]), ("-2", lines[50:])):
            (folder / f"day{day}{name}.csv").write_text("\n".join([header, *part, ""]))
        (folder / f"day{day}.jsonl").write_text("\n".join([*objects, ""]))


def call(*words):
    assert main([*map(str, words)]) == 0


def files_of(case, *days):
    names = {"csv": ["day{}.csv"], "jsonl": ["day{}.jsonl"], "files": ["day{}-1.csv", "day{}-2.csv"]}[case["source"]]
    return [name.format(day) for day in days for name in names]


def results_of(folder, state):
    """Return the state of a run, and the rows in its files of predictions and of dead letters."""
    checkpoint = read_newest(folder / state)
    names = "rows", "learned", "metrics", "scores", "curve", "labels", "weight", "drift", "flags"
    facts = {name: checkpoint.header.get(name) for name in names} | {"refused": checkpoint.header["refused"]["counts"]}
    lines = {}
    for name in ("out", "bad"):
        paths = sorted(folder.glob(f"{name}.0*")) + sorted(folder.glob(f"{name}.[cj]*"))
        lines[name] = [line for path in paths for line in path.read_text().splitlines() if not line.startswith("row,")]
    return dumps(find_learner(checkpoint.model)), facts, lines["out"], len(lines["bad"])


@pytest.mark.parametrize("case", [pytest.param(case, id="-".join(case.values())) for case in pairwise(FACTORS, EXCLUDED)])
def test_a_run_continues_as_if_it_had_not_stopped(case, tmp_path, monkeypatch):
    outputs = [*case["to"].split(), *case["letters"].split()]
    weight = ["--weight", "w"] if case["weight"] == "--weight w" else []
    first = ["--label", "y", "--learner", case["learner"], *case["answers"].split(), *case["scores"].split(), *weight]
    kind = "key" if "--key-models" in case["answers"] else "category"
    first += ["--columns", f"id:drop,c:{kind}" + ",w:drop" * (not weight), "--checkpoint-every", 40]
    days = (1, 2) if case["way"] in ("next file", "warm start") else (1,)
    results = []
    for place in ("whole", "parts"):
        folder = tmp_path / place
        folder.mkdir()
        monkeypatch.chdir(folder)
        write_files(folder)
        if place == "whole":
            call("learn", *files_of(case, *days), *first, *outputs, "--checkpoint", "state")
        else:
            state = continue_run(case, first, outputs, folder)
        results.append(results_of(folder, "state" if place == "whole" else state))
    if case["way"] == "warm start":  # the outputs of the first run stay there
        results = [result[:2] for result in results]
    assert results[0] == results[1]


def continue_run(case, first, outputs, folder):
    """Run the commands of a way to continue, and return the folder with the last checkpoint."""
    state, (run, following) = ["--checkpoint", "state"], (["learn", *files_of(case, day)] for day in (1, 2))
    if case["way"] in ("stop", "copy"):
        call(*run, *first, *outputs, *state, "--max-rows", FIRST)
        if case["way"] == "copy":
            (folder / "copy").mkdir()
            call("checkpoints", "state", "--copy", "copy")
            state[1] = "copy"
    elif case["way"] == "rollback":
        call(*run, *first, *outputs, *state, "--keep-checkpoints", 9)
        call("rollback", "state", "--to", FIRST)
    else:
        call(*run, *first, *outputs, *state)
        start = ["--from", "earliest"]
        if case["way"] == "warm start":
            start, state, outputs = ["--start-from", "state"], ["--checkpoint", "new"], ["--on-error", "skip"]
        call(*following, *outputs, *state, *start, "--max-rows", FIRST)
        call(*following, *outputs, *state, *start)
        return state[1]
    call(*run, *outputs, *state)
    return state[1]
