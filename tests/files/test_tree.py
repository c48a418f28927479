"""Maliciously crafted files are refused with a clear error, without running code or using much memory."""

import copy
import json
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from river import base

import mutated_files
import mutated_runs
from checkpoints import learned
from crafted import put_together, repacked, taken_apart
from lists import OF_RELEASE
from refused import raises
from saved import dumps, loads
from streamsvm import BSGDClassifier, load, save
from streamsvm.files.container import ModelFileError
from streamsvm.files.tree import read_tree, write_tree

SCALER = "river.preprocessing:StandardScaler"
WORDS = {"bytes": 0}


def make_codec(kind, *parts):
    return {"codec": [kind, {"tuple": list(parts)}]}


CRAFTED = {
    "no record": ([], {"ref": 9}),
    "a record before the first": ([["list", []]], {"ref": -1}),
    "a record by a bool": ([["list", []]], {"ref": False}),
    "an unknown record": ([["file", "/etc/passwd"]], {"ref": 0}),
    "an empty record": ([[]], {"ref": 0}),
    "a record that is none": ([5], {"ref": 0}),
    "an unknown value": ([], {"call": ["os:system", "true"]}),
    "two values": ([], {"tuple": [], "bytes": 0}),
    "a bare list": ([], [1, 2]),
    "a float that is none": ([], {"float": "1e5"}),
    "an int that is none": ([], {"int": "os"}),
    "a number of no type": ([], {"scalar": ["O", 1]}),
    "a number that is none": ([], {"scalar": ["F64", {"class": "builtins:int"}]}),
    "a number out of range": ([], {"scalar": ["U8", 300]}),
    "bytes that are not there": ([], {"bytes": 7}),
    "an array that is not there": ([["array", 7, False]], {"ref": 0}),
    "a tuple of a number": ([], {"tuple": 5}),
    "a set of lists": ([["list", []], ["set", [{"ref": 0}]]], {"ref": 1}),
    "a key that is a list": ([["list", []], ["dict", [[{"ref": 0}, 1]]]], {"ref": 1}),
    "a pair of three": ([["dict", [[1, 2, 3]]]], {"ref": 0}),
    "a default that cannot be called": ([["defaultdict", [], 5]], {"ref": 0}),
    "a long deque": ([["deque", [], 2**70]], {"ref": 0}),
    "a short deque": ([["deque", [], -1]], {"ref": 0}),
    "a partial of a number": ([], make_codec("partial", 5, {"tuple": []}, {"tuple": []})),
    "a partial of itself": ([["codec", "partial", {"tuple": [{"ref": 0}, {"tuple": []}, {"tuple": []}]}]], {"ref": 0}),
    "a partial with a list": ([["list", []]], make_codec("partial", {"class": "builtins:int"}, {"ref": 0}, {"tuple": []})),
    "a generator beyond its words": ([["codec", "Random", {"tuple": [WORDS, 10**9, None]}]], {"ref": 0}),
    "a generator before its words": ([["codec", "RandomState", {"tuple": [WORDS, -1, 0, 0.0]}]], {"ref": 0}),
    "a generator with half a normal": ([["codec", "RandomState", {"tuple": [WORDS, 5, 2, 0.0]}]], {"ref": 0}),
    "a generator of a generator": ([["codec", "Random", {"ref": 0}]], {"ref": 0}),
    "an unknown form": ([], make_codec("Popen", "true")),
    "a date that is none": ([], make_codec("date", "2020-13-01")),
    "a normal distribution of text": ([], make_codec("NormalDist", "a", "b")),
    "a negative deviation": ([], make_codec("NormalDist", 0.0, -1.0)),
    "a class that is a tuple of nothing": ([], {"namedtuple": [SCALER, []]}),
    "a builtin as an instance": ([["instance", "builtins:list", []]], {"ref": 0}),
    "an abstract class": ([["instance", "river.base:Classifier", []]], {"ref": 0}),
    "a learner past its checks": ([["instance", "streamsvm:BSGDClassifier", [["budget", 9]]]], {"ref": 0}),
    "a learner of nothing": ([["state", "streamsvm:BSGDClassifier", None]], {"ref": 0}),
    "a model without checks": ([["dict", []], ["state", SCALER, {"ref": 0}]], {"ref": 1}),
    "an attribute of three": ([["instance", SCALER, [["a", 1, 2]]]], {"ref": 0}),
    "an attribute by a number": ([["instance", SCALER, [[0, 1]]]], {"ref": 0}),
    "a method of a list": ([["list", []]], {"method": [{"ref": 0}, "clone"]}),
    "a pickle": ([["pickle", 0]], {"ref": 0}),
}


@pytest.mark.parametrize("crafted", CRAFTED)
def test_inconsistent_records_are_refused(tmp_path, crafted):
    records, root = CRAFTED[crafted]
    arrays = [np.zeros(4 * 624, np.uint8), np.zeros(8, np.uint8)]
    path = put_together(tmp_path / "evil", records, root, arrays)
    raises(r"evil (cannot be loaded|was not loaded)", load, path, error=ModelFileError)


@pytest.mark.parametrize("tree", [b"", b"{", b"[]", b"5", b'{"records":5,"root":1}', b'{"root":1}', b"[" * 10**6, b"\xff"])
def test_invalid_json_is_refused(tmp_path, tree):
    raises("cannot be loaded", load, repacked(tmp_path / "evil", tree, {}), error=ModelFileError)


def test_nested_tuples_are_limited(tmp_path):
    deep = "[]"
    for _ in range(5000):
        deep = f'[{{"tuple":{deep}}}]'
    with pytest.raises(ModelFileError, match="cannot be loaded"):
        load(repacked(tmp_path / "evil", f'{{"records":[],"root":{{"tuple":{deep}}}}}'.encode(), {}))
    nested = ()
    for _ in range(200):
        nested = (nested,)
    raises("nested more than", dumps, nested, error=ModelFileError)


def test_file_without_model_is_refused(tmp_path):
    raises("holds no model", load, repacked(tmp_path / "evil", b'{"records":[],"root":5}', {}), error=ModelFileError)
    with pytest.raises(ModelFileError, match="has no valid metadata"):
        load(repacked(tmp_path / "evil", b'{"records":[],"root":5}', {}, facts=[1]))


class Evil:
    def __reduce__(self):
        return os.system, ("touch ran",)


class Patching:
    def __reduce__(self):
        return copy.copy, (base.Base,), (None, {"clone": print})


@pytest.mark.parametrize("evil", [Evil(), Patching(), np.zeros(3), np.dtype("f8"), [Evil()], np.array([Evil()], object)])
def test_pickles_are_refused(tmp_path, monkeypatch, evil):
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(evil)
    path = tmp_path / "evil.ckpt"
    path.write_bytes(data)
    raises("not a file of streamsvm", load, path, error=ModelFileError)
    model = learned()
    save(model, path)
    tree, arrays = taken_apart(path)
    for name in filter(str.isdecimal, arrays):  # other arrays belong to the edge program
        with pytest.raises(ModelFileError, match="cannot be loaded"):
            load(repacked(path, json.dumps(tree).encode(), {**arrays, name: np.frombuffer(data, np.uint8)}))
    assert not Path("ran").exists()


def test_crafted_files_do_not_change_the_process(tmp_path):
    before = mutated_files.state_of_process()
    for records, root in CRAFTED.values():
        with pytest.raises(ModelFileError):
            load(put_together(tmp_path / "evil", records, root))
    after = mutated_files.state_of_process()
    assert {key for key, value in before.items() if after.get(key) != value} == set()


def count_outcomes(module):
    """Return the share of outcomes of each kind for mutated files of a script: 60, and for a release 120."""
    script, n = Path(module.__file__), 120 if OF_RELEASE else 60
    command = [sys.executable, script, str(n), "0"]
    done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.args}: {done.stdout}{done.stderr}"
    return {name: count / n for name, count in json.loads(done.stdout)["fates"].items()}


@pytest.mark.thorough
def test_mutated_models_do_not_crash():
    fates = count_outcomes(mutated_files)
    assert fates["refused"] > 60 / 120
    assert fates["used"] > 20 / 120


@pytest.mark.thorough
def test_mutated_checkpoints_do_not_crash():
    fates = count_outcomes(mutated_runs)
    assert len(fates) == 2
    assert min(fates.values()) > 4 / 120


def test_circular_references_are_restored():
    scaler = BSGDClassifier(budget=5)
    loop = [scaler]
    loop.append(loop)
    loaded = loads(dumps({"a": loop, "b": [scaler, ("c", loop)]}))
    assert loaded["a"][1] is loaded["a"]
    assert loaded["b"][1][1] is loaded["a"]
    assert loaded["b"][0] is loaded["a"][0]


@pytest.mark.parametrize(
    "values",
    [
        [1, -(2**63) + 1, 2**63 - 1],
        [1, 2**63],
        [1, -(2**63)],
        [0.5, -0.0],
        [0.5, math.nan],
        [True, None, "a"],
        [1, 1.0, True],
        ["a", ("b",)],
        [],
    ],
)
def test_lists_of_plain_values_are_encoded_like_single_values(values):
    alone = [json.loads(write_tree(value)[0])["root"] for value in values]
    text, arrays = write_tree(values)
    assert json.dumps(json.loads(text)["records"][0]) == json.dumps(["list", alone])
    assert repr(read_tree(text, arrays)) == repr(values)
