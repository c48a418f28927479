"""``streamsvm inspect``: its output for users, and the picture of ``--plot``, or the reason for an error."""

import json

import numpy as np
import pytest
from river import datasets, preprocessing

import streamsvm
from streamsvm import BSGDClassifier
from streamsvm.files.model_file import serialize_parts
from streamsvm.learners.keyed import KeyedClassifier
from streamsvm.stream import CheckpointFolder, IterableSource, LearningLoop


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


def test_inspect_a_key(file, tmp_path, call):
    """Rows, the last label and the mean of recent ones, which begins with that of all rows before."""
    rows = [("device-1", "s1", "yes"), ("device-2", "s1", "no"), ("device-1", "s2", "no"), ("device-1", "s1", "no")]
    path = file("rows.csv", "device,shop,a,y", *(f"{d},{s},1,{y}" for d, s, y in rows))
    words = "--label", "y", "--learner", "bsgd,budget=20", "--quiet"
    for state, columns in (("one", "device:key"), ("two", "device:key,shop:key"), ("none", "device:category")):
        call(
            "learn",
            path,
            *words,
            "--columns",
            f"{columns},shop:category"[: len(columns) + 14 * (state == "one")],
            "--checkpoint",
            tmp_path / state,
        )
    recent = 0.9 * 0.9 * (0.9 * 1.0 + 0.1)
    facts = {"device": "device-1", "rows": 3, "last": "no", "recent yes": pytest.approx(recent, abs=1e-6)}
    for state, key in (("one", "device-1"), ("one", "device=device-1"), ("two", "device=device-1")):
        assert json.loads(call("inspect", tmp_path / state, "--key", key, "--json").stdout) == facts
    assert call("inspect", tmp_path / "two", "--key", "shop=s1").stdout.splitlines()[:3] == [
        "shop        s1",
        "rows        3",
        "last        no",
    ]
    assert "keys             device, shop; inspect --key shows one" in call("inspect", tmp_path / "two").stdout
    assert "inspect --key" not in call("inspect", tmp_path / "none").stdout
    for state, key, status, says in [
        ("one", "device-11", 1, "the model does not know the device 'device-11'. Perhaps 'device-1'"),
        ("one", "shop=s1", 1, "the model does not know the device 'shop=s1'"),
        ("two", "device-1", 2, "--key device-1: name its column, device=device-1"),
        ("none", "device-1", 2, "--key device-1: no column is a key: learn with --columns NAME:key"),
    ]:
        call("inspect", tmp_path / state, "--key", key, status=status, says=says)
    printed = call("export", tmp_path / "two", "--to", "numpy", "--out", tmp_path / "out").stdout
    assert "what it remembers of keys (device, shop) is as of now: an exported model does not learn\n" in printed


@pytest.mark.filterwarnings("ignore:the key 'device' is a fraction")
def test_inspect_the_models_of_a_key(tmp_path, call):
    """Their rows, and the last one of these, also of keys in the store beside a checkpoint."""
    keys = [("a7", 0, 8.5, "b")[i] for i in np.random.default_rng(0).integers(0, 4, 60)]
    recent = [str(key) for key in sorted({*keys}, key=keys[::-1].index)]
    rows = [({"device": key, "a": float(i % 5)}, i % 2 > 0) for i, key in enumerate(keys)]
    model = KeyedClassifier(BSGDClassifier(budget=20), key="device", max_keys=2)
    with CheckpointFolder(tmp_path / "state") as folder:
        LearningLoop(IterableSource(rows), model, checkpoints=folder).run()
    streamsvm.save(model, tmp_path / "model")
    for place, expected_place, names in (("state", "keys.sqlite", recent), ("model", "memory", recent[:2])):
        for name in names:
            numbers = [i for i, key in enumerate(keys, 1) if str(key) == name]
            facts = {"device": name, "rows of own models": len(numbers), "last updated at row": numbers[-1]}
            printed = json.loads(call("inspect", tmp_path / place, "--key", name, "--json").stdout)
            assert printed == facts | {"own models in": expected_place}
        call("inspect", tmp_path / place, "--key", "c", status=1, says="does not know the device 'c'")
