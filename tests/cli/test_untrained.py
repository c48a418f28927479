"""The command line and a model that does not predict before it has learned: None, and no probabilities."""

import json

import pytest
from river import datasets, evaluate, metrics, tree

from command_words import main
from streamsvm.cli import parsing
from streamsvm.stream import CheckpointFolder

LABELS = ("ham", "spam")


@pytest.fixture
def rows():
    return [({"a": x["1"], "b": x["2"]}, LABELS[y]) for x, y in datasets.Bananas().take(300)]


@pytest.fixture
def csv_file(tmp_path, rows):
    path = tmp_path / "rows.csv"
    path.write_text("a,b,y\n" + "".join(f"{x['a']!r},{x['b']!r},{y}\n" for x, y in rows))
    return path


@pytest.mark.parametrize("metric", ["Accuracy", "MacroF1", "CrossEntropy"])
def test_learn(monkeypatch, tmp_path, csv_file, rows, capsys, metric):
    monkeypatch.setitem(parsing.LEARNERS, "bsgd", (tree.HoeffdingTreeClassifier, tree.HoeffdingTreeRegressor))
    words = ["learn", str(csv_file), "--label", "y", "--scale", "none", "--metric", metric, "--to", str(tmp_path / "out.csv")]
    assert main([*words, "--quiet"]) == 0
    end = json.loads(capsys.readouterr().out.splitlines()[-1])
    expected = evaluate.progressive_val_score(rows, tree.HoeffdingTreeClassifier(), getattr(metrics, metric)())
    assert (end["learned"], end["metric"]) == (300, pytest.approx(expected.get(), abs=1e-12))
    assert (tmp_path / "out.csv").read_text().splitlines()[1] == f"0,,{rows[0][1]},"


@pytest.mark.parametrize("metric", ["Accuracy", "LogLoss"])
def test_learn_one_row(monkeypatch, csv_file, capsys, metric):
    monkeypatch.setitem(parsing.LEARNERS, "bsgd", (tree.HoeffdingTreeClassifier, tree.HoeffdingTreeRegressor))
    positive = ["--positive", "spam"] if metric == "LogLoss" else []
    assert main(["learn", str(csv_file), "--label", "y", "--metric", metric, "--max-rows", "1", *positive]) == 0
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("1 row ")
    assert metric not in last  # of no row, there is no score


def test_predict(tmp_path, csv_file, rows):
    with CheckpointFolder(tmp_path / "state") as folder:
        folder.save(tree.HoeffdingTreeClassifier(), None, rows=0, position={"rows": 0})
    for name in ("out.csv", "out.jsonl"):
        words = ["predict", str(csv_file), "--label", "y", "--model", str(tmp_path / "state"), "--to", str(tmp_path / name)]
        assert main(words) == 0
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[1:] == [f"{row},,{y}," for row, (_, y) in enumerate(rows)]
    first = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    assert first == {"row": 0, "y_pred": None, "y_true": rows[0][1], "probability": None}
