"""``streamsvm inspect``: its output for users, and the picture of ``--plot``, or the reason for an error."""

import json

import pytest
from river import datasets, preprocessing

import streamsvm
from streamsvm import BSGDClassifier
from streamsvm.files.model_file import serialize_parts


@pytest.fixture
def csv_file(tmp_path):
    path = tmp_path / "bananas.csv"
    rows = [f"{i},{x['1']!r},{x['2']!r},{y}\n" for i, (x, y) in enumerate(datasets.Bananas().take(600))]
    path.write_text("id,a,b,y\n" + "".join(rows))
    return path


def learn(call, csv_file, state, *flags):
    call("learn", csv_file, "--label", "y", "--learner", "bsgd,budget=30", "--checkpoint", state, "--quiet", *flags)


def test_curve_and_boundary_of_a_checkpoint(csv_file, tmp_path, call):
    state, picture = tmp_path / "state", tmp_path / "out.png"
    learn(call, csv_file, state, "--columns", "id:drop")
    done = call("inspect", state, "--plot", picture)
    assert done.last == f"drawn: {picture}"  # matplotlib may say before it that it looks for fonts
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "learning curve   150 points, one every 4 rows; inspect --plot draws them" in done.stdout
    done = call("inspect", state, "--plot", picture, "--json")  # over the picture that is there
    assert done.last == f"drawn: {picture}"
    assert len(json.loads(done.stdout)["curve"]["points"]) == 150


def test_a_saved_model_has_no_curve(tmp_path, call):
    model = preprocessing.StandardScaler() | BSGDClassifier(budget=30, seed=1)
    for x, y in datasets.Bananas().take(100):
        model.learn_one(x, y)
    path = tmp_path / "model.png"
    streamsvm.save(model, path)
    done = call("inspect", path, "--plot", tmp_path / "out.pdf")
    reason = "(no learning curve: the model was saved without one)"
    assert done.last == f"drawn: {tmp_path / 'out.pdf'} {reason}"
    before = path.read_bytes()
    call("inspect", path, "--plot", path, status=2, says="would overwrite the model, or write into it: name another file")
    assert path.read_bytes() == before
    streamsvm.save(BSGDClassifier(), path)
    done = call("inspect", path, "--plot", tmp_path / "none.png", status=1)
    assert done.stderr.startswith("streamsvm: --plot: there is nothing to draw: no learning curve: ")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "none.png").exists()


def test_corrupt_learning_curve_is_reported(tmp_path, call):
    path = tmp_path / "checkpoint.ckpt"
    path.write_bytes(serialize_parts({"model": BSGDClassifier()}, {"kind": "checkpoint", "rows": 3, "curve": {"points": [1, 2]}}))
    done = call("inspect", path, "--plot", tmp_path / "out.png", status=1)
    assert done.stderr == "streamsvm: --plot: the learning curve is corrupt: {'points': [1, 2]}\n"
    done = call("inspect", path)
    assert "the learning curve is corrupt: {'points': [1, 2]}\n" in done.stdout


def test_inspect_prints_summary_before_details(csv_file, tmp_path, call):
    path = tmp_path / "bad.csv"
    path.write_text(csv_file.read_text() + "600,x,0.5,True\n601,0.1,0.2,\n")
    learn(call, path, tmp_path / "state", "--columns", "id:drop", "--on-error", "skip", "--drift", "ADWIN")
    lines = [line.split(None, 1) for line in call("inspect", tmp_path / "state").stdout.splitlines()]
    said = dict(line for line in lines if len(line) == 2)
    assert said["predicts"] == "y"
    assert set(said["labels"].split(", ")) == {"True", "False"}
    assert said["rows"].startswith("600 learned, 1 without a label, 1 refused (1 ")
    assert said["rows"].endswith("), 0 drifts")
    assert said["score"].startswith("Accuracy 0.")
    assert "always " in said["score"]
    assert said["columns"] == "1 dropped, 2 number"
    assert said["learner"].startswith("BSGDClassifier: a kernel SVM that learns row by row by stochastic gradient descent")
    assert said["memory"].endswith(" bytes")
    assert not said.keys() & {"digest", "position", "parameters"}
    facts = json.loads(call("inspect", tmp_path / "state", "--json").stdout)
    shown = call("inspect", tmp_path / "state", "--all").stdout
    assert all(f"\n{name} " in shown for name in facts)


def test_inspect_describes_experts(csv_file, tmp_path, call):
    call("learn", csv_file, "--label", "y", "--learner", "auto,effort=low", "--checkpoint", tmp_path / "state", "--quiet")
    (line,) = [line for line in call("inspect", tmp_path / "state").stdout.splitlines() if line.startswith("listens to")]
    shares = [int(part.rpartition("(")[2]) for part in line.split(" %)")[:-1]]
    assert len(shares) == 4
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) <= 100
