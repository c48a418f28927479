"""Small files that would need much time or memory are refused before their objects are created."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from river import preprocessing

import loading
import streamsvm
from crafted import put_together, repacked, taken_apart
from refused import raises
from saved import dumps
from streamsvm.batch import BatchClassifier, BatchRegressor, CSMOClassifier, CSMORegressor
from streamsvm.core.memory.features import FeatureSpace
from streamsvm.files import container
from streamsvm.files.container import ModelFileError, check_hash_collisions, check_sharing
from streamsvm.files.tree import read_tree, write_tree
from streamsvm.learners.preprocessing import BoundedScaler

DEEP = 40
EMPTY = {"tuple": []}
BOMB = {"ref": 1}


def make_nested_lists(first):
    """Return records of lists that contain the next list twice: few bytes, but a traversal visits 2**40 values."""
    return [["list", [{"ref": first + i + 1}] * 2] for i in range(DEEP)] + [["list", [1]]]


def make_codec(kind, *parts):
    return {"codec": [kind, {"tuple": list(parts)}]}


VALUES = {
    "partial": make_codec("partial", BOMB, EMPTY, EMPTY),
    "values": make_codec("VectorDict", BOMB, None, None),
    "RandomState": make_codec("RandomState", BOMB, BOMB, BOMB, BOMB),
    "AdaptiveWindowing": make_codec("AdaptiveWindowing", {"tuple": [BOMB] * 5}, BOMB),
    "number": {"scalar": ["F64", BOMB]},
}
RECORDS = {
    "default_factory": [["defaultdict", [], BOMB], *make_nested_lists(1)],
    "a state": [["state", "streamsvm:BSGDClassifier", BOMB], *make_nested_lists(1)],
    "an array often": [["list", []], *[["array", 0, False]] * 3000],
    "hashes": [["dict", [[{"int": hex((2**61 - 1) * i)}, 0] for i in range(20_000)]]],
    "hashes of a set": [["set", [{"int": hex((2**61 - 1) * i)} for i in range(20_000)]]],
}


@pytest.fixture(scope="module")
def fates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bombs")
    large = [np.zeros(2**20, np.uint8)]
    paths = [
        put_together(folder / name, [["list", [value]], *make_nested_lists(1)], {"ref": 0}) for name, value in VALUES.items()
    ]
    paths += [put_together(folder / name, records, {"ref": 0}, large) for name, records in RECORDS.items()]
    done = subprocess.run([sys.executable, loading.__file__, *paths], capture_output=True, text=True, check=True)
    return {Path(path).name: fate for path, fate in json.loads(done.stdout).items()}


@pytest.mark.thorough
def test_exponential_files_are_refused_quickly(fates):
    assert len(fates) == len(VALUES) + len(RECORDS)
    bombs = {name: fate for name, fate in fates.items() if name not in RECORDS}
    assert {name: fate for name, fate in bombs.items() if "share so much" not in fate} == {}


@pytest.mark.thorough
@pytest.mark.parametrize("name", RECORDS)
def test_files_with_many_copies_are_refused_quickly(fates, name):
    assert "cannot be loaded: " in fates[name]
    assert "this version cannot read it" not in fates[name]  # this would be an exception other than that of the checks


@pytest.mark.parametrize("number", [{"ref": 1}, {"tuple": [1]}, "1", None])
def test_numpy_scalar_must_be_a_single_number(tmp_path, number):
    path = put_together(tmp_path / "number", [["list", [{"scalar": ["F64", number]}]], ["list", [1, 2]]], {"ref": 0})
    raises("in place of a number", streamsvm.load, path, error=streamsvm.stream.CheckpointError)


def test_many_models_with_the_same_array_are_refused(tmp_path):
    scaler = BoundedScaler()
    for i in range(40):
        scaler.learn_one({f"a{j}": i for j in range(200)})
    (tmp_path / "scaler").write_bytes(dumps([scaler] * 2))
    tree, arrays = taken_apart(tmp_path / "scaler")
    of_model = next(record for record in tree["records"] if record[0] == "state")
    tree["records"] += [of_model] * 3000
    repacked(tmp_path / "scaler", json.dumps(tree).encode(), arrays)
    raises("share so much", streamsvm.load, tmp_path / "scaler", error=streamsvm.stream.CheckpointError)


def test_models_may_share_objects(monkeypatch):
    monkeypatch.setattr(container, "_MIN_VISIT_LIMIT", 10**5)
    shared = defaultdict(float, {i: float(i) for i in range(300)})
    chain = []
    for _ in range(5000):
        chain = [chain]
    models = [preprocessing.StandardScaler() for _ in range(400)]
    for model in models:
        model.means = shared
    loaded = read_tree(*write_tree({"models": models, "chain": chain, "loops": [models, models]}))
    assert loaded["loops"][0] is loaded["loops"][1]
    assert all(model.means is loaded["models"][0].means for model in loaded["models"])


def test_limit_counts_visits_of_a_traversal():
    def nested(levels):
        records, root = [["list", [{"ref": i + 1}, {"ref": i + 1}]] for i in range(levels)] + [["list", []]], {"ref": 0}
        check_sharing(records, root, [])

    nested(15)
    with pytest.raises(ModelFileError):
        nested(21)


def test_hash_collisions_are_limited():
    check_hash_collisions([i * 2**40 for i in range(5000)])
    check_hash_collisions([float(i) for i in range(5000)])
    raises("same hash", check_hash_collisions, [complex(-1000003 * i, i) for i in range(5000)], error=ModelFileError)


@pytest.mark.parametrize("kind", [BatchClassifier, BatchRegressor])
def test_window_beyond_memory_is_refused(kind):
    model = CSMOClassifier() if kind is BatchClassifier else CSMORegressor()
    with pytest.raises(ValueError, match=r"window=2,147,483,647 and max_features=1,048,576 need .* lower one of them"):
        kind(model, window=2**31 - 1, max_features=2**20)


def test_colliding_names_are_refused_before_hashing():
    state = BoundedScaler().__getstate__() | {"names": [(2**61 - 1) * i for i in range(2000)]}
    raises("same hash", BoundedScaler.__new__(BoundedScaler).__setstate__, state, error=ModelFileError)
    raises("same hash", FeatureSpace(5000, "raise").restore, state["names"], error=ModelFileError)
