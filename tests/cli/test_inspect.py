"""``streamsvm inspect --plot``: the picture of a checkpoint, and what is said where there is none."""

import json

import pytest
from river import datasets, preprocessing

import streamsvm
from streamsvm import BSGDClassifier
from streamsvm.files.model_file import to_bytes


@pytest.fixture
def csv_file(tmp_path):
    path = tmp_path / "bananas.csv"
    rows = [f"{i},{x['1']!r},{x['2']!r},{y}\n" for i, (x, y) in enumerate(datasets.Bananas().take(600))]
    path.write_text("id,a,b,y\n" + "".join(rows))
    return path


def learn(call, csv_file, state, *flags):
    call("learn", csv_file, "--label", "y", "--learner", "bsgd,budget=30", "--checkpoint", state, "--quiet", *flags)


@pytest.mark.parametrize("scale", ["standard", "none"])
def test_curve_and_boundary_of_a_checkpoint(csv_file, tmp_path, call, scale):
    state, picture = tmp_path / "state", tmp_path / "out.png"
    learn(call, csv_file, state, "--columns", "id:drop", "--scale", scale)
    done = call("inspect", state, "--plot", picture)
    assert done.last == f"drawn: {picture}"  # matplotlib may say before it that it looks for fonts
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "curve            150 points, one every 4 rows\n" in done.stdout
    done = call("inspect", state, "--plot", picture, "--json")  # over the picture that is there
    assert done.last == f"drawn: {picture}"
    assert len(json.loads(done.stdout)["curve"]["points"]) == 150


def test_the_curve_alone_of_a_model_of_other_features(csv_file, tmp_path, call):
    learn(call, csv_file, tmp_path / "state", "--columns", "id:number,a:number,b:number,*:drop")
    done = call("inspect", tmp_path / "state", "--plot", tmp_path / "out.svg")
    reason = "(no decision boundary: it is drawn for two features, and the model has 3)"
    assert done.last == f"drawn: {tmp_path / 'out.svg'} {reason}"


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


def test_a_corrupt_curve_is_said(tmp_path, call):
    path = tmp_path / "checkpoint.ckpt"
    path.write_bytes(to_bytes({"model": BSGDClassifier()}, {"kind": "checkpoint", "rows": 3, "curve": {"points": [1, 2]}}))
    done = call("inspect", path, "--plot", tmp_path / "out.png", status=1)
    assert done.stderr == "streamsvm: --plot: the learning curve is corrupt: {'points': [1, 2]}\n"
    done = call("inspect", path)
    assert "the learning curve is corrupt: {'points': [1, 2]}\n" in done.stdout
