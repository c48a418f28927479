"""Models are saved and loaded: equal models have equal bytes, and files can only name classes of models."""

import ast
import inspect
import json
import numbers
import os
import pickle
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from river import (
    base,
    compose,
    datasets,
    ensemble,
    feature_extraction,
    linear_model,
    metrics,
    multiclass,
    preprocessing,
    stats,
    utils,
)
from sklearn.base import BaseEstimator

import streamsvm
from checkpoints import learned, save
from crafted import put_together, repacked, taken_apart
from refused import raises
from streamsvm import BSGDClassifier, batch, learners, linear
from streamsvm.core import budget
from streamsvm.core.memory.support_vectors import SupportVectorStore
from streamsvm.files import codecs
from streamsvm.files.codecs import OWN_CLASSES
from streamsvm.learners import preprocessing as preprocessing_of_ours
from streamsvm.stream import CheckpointError, CheckpointFolder, load, tables
from streamsvm.stream.checkpoint import read_checkpoint


def test_equal_models_have_equal_bytes(folder, model):
    first = save(folder, model, 1).read_bytes()
    assert save(folder, learned(), 1).read_bytes() == first
    # A pickled copy shares other strings, and so does a resumed run,
    assert save(folder, pickle.loads(pickle.dumps(model)), 1).read_bytes() == first

    # and a model that learns rows whose keys are new objects
    def rename(x):
        return {"".join(list(name)): value for name, value in x.items()}

    rows = list(datasets.Bananas().take(300))
    a, b = learned(), load(save(folder, learned(), 2))
    for x, y in rows[200:]:
        a.learn_one(x, y)
        b.learn_one(rename(x), y)
    assert save(folder, a, 3).read_bytes() == save(folder, b, 3).read_bytes()


WAYS = {
    "class": lambda name: {"root": {"class": name}},
    "function": lambda name: {"root": {"function": name}},
    "instance": lambda name: {"records": [["instance", name, []]], "root": {"ref": 0}},
    "model": lambda name: {"records": [["state", name, None]], "root": {"ref": 0}},
    "named tuple": lambda name: {"root": {"namedtuple": [name, []]}},
    "default": lambda name: {"records": [["defaultdict", [], {"function": name}]], "root": {"ref": 0}},
    "partial": lambda name: {"root": {"codec": ["partial", {"tuple": [{"class": name}, {"tuple": []}, {"tuple": []}]}]}},
    "key": lambda name: {"records": [["dict", [[{"class": name}, 1]]]], "root": {"ref": 0}},
    "member": lambda name: {"records": [["set", [{"function": name}]]], "root": {"ref": 0}},
}


#: The class of river.base is defined in river.base.base.
FORBIDDEN = """
    builtins:eval os:system subprocess:Popen numpy:ndarray numpy:dtype numpy:frombuffer
    numpy._core.multiarray:_reconstruct builtins:getattr builtins:type builtins:object random:Random
    copyreg:_reconstructor builtins:open builtins:str.join functools:reduce numpy:load river:base river.base:typing
    river.base.base:Base river.base.base:inspect.os.system river.compose.pipeline:union.TransformerUnion
    river.datasets.base:RemoteDataset river.drift.datasets:AirlinePassengers river.metrics.base:operator.attrgetter
    river.stream.cache:Cache river.utils.math:minkowski_distance.__globals__ riverside.base:Base
    streamsvm.batch.adapter.estimators:BatchAdapter streamsvm.batch.csmo.values:StoredRows
    streamsvm.batch.csmo.estimators:combinations streamsvm.__main__:main streamsvm.cli.main:main
    streamsvm.learners.budgeted:itertools streamsvm.learners.budgeted:check_number
    streamsvm.learners.budgeted_classifier:BudgetedClassifier.learn_one streamsvm.stream.checkpoint:CheckpointFolder
    streamsvm.stream.sinks:FileSink
"""


@pytest.mark.parametrize("way", WAYS)
def test_names_outside_the_allowlist_are_refused(tmp_path, way):
    modules_before = set(sys.modules)
    for name in FORBIDDEN.split():
        path = put_together(tmp_path / "evil.ckpt", **WAYS[way](name))
        raises(f"it names {re.escape(name.replace(':', '.'))}, which is not a", load, path, error=CheckpointError)
    assert {"os", "subprocess"} & (set(sys.modules) - modules_before) == set()


def test_the_names_of_our_classes_are_unique():
    tree = ast.parse(inspect.getsource(codecs))
    (table,) = (node.value for node in tree.body if isinstance(node, ast.AnnAssign) and node.target.id == "OWN_CLASSES")
    written = [name for names in table.generators[0].iter.func.value.values for name in names.value.split()]
    assert len(written) == len(set(written))
    for name, module in OWN_CLASSES.items():
        kind = codecs.find_class(f"streamsvm:{name}")
        own_name = codecs.RENAMED_CLASSES.get(name, name)
        assert (kind.__module__, kind.__qualname__, codecs.get_stored_name(kind)) == (module, own_name, f"streamsvm:{name}")


@pytest.mark.parametrize("package", [streamsvm, learners, batch, linear, budget, preprocessing_of_ours, tables], ids=str)
def test_every_public_model_class_has_a_stored_name(package):
    public = [getattr(package, name) for name in getattr(package, "__all__", dir(package))]
    bases = base.Base, BaseEstimator, budget.Strategy
    ours = {
        kind.__name__
        for kind in public
        if isinstance(kind, type)
        and kind.__module__.startswith("streamsvm.")
        and issubclass(kind, bases)
        and not inspect.isabstract(kind)
    }
    assert ours - {"Strategy", "Refusal"} <= OWN_CLASSES.keys()
    assert ours


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("__class__", "names the method"),
        ("learn_one", "names the method"),
        ("__init_subclass__", "names the method"),
        ("gauss", "AttributeError"),
    ],
)
def test_other_methods_of_instances_are_refused(tmp_path, name, reason):
    scaler = ["instance", "river.preprocessing:StandardScaler", [["gauss", 1]]]
    raises(reason, load, put_together(tmp_path / "evil.ckpt", [scaler], {"method": [{"ref": 0}, name]}), error=CheckpointError)


def test_attributes_cannot_hide_class_members(tmp_path):
    for name in ("__class__", "__dict__", "__init__", "learn_one", "clone", "_memory_usage", 5, None):
        scaler = ["instance", "river.preprocessing:StandardScaler", [["with_std", True], [name, 1]]]
        evil = put_together(tmp_path / "evil.ckpt", [scaler], {"ref": 0})
        raises("attribute that can be saved", load, evil, error=CheckpointError)


class OwnScaler(preprocessing.StandardScaler):
    """A class of the user."""


def own_function(x):
    return {"sum": sum(x.values())}


def test_own_classes_need_trust(tmp_path):
    for step in (OwnScaler(), compose.FuncTransformer(own_function)):
        model = step | BSGDClassifier(budget=20, seed=1)
        model.learn_one({"a": 1.0}, True)
        with CheckpointFolder(tmp_path / "state") as folder:
            raises(r"(?s)not written.*(own_function|OwnScaler).*trusted=True", save, folder, model, 1, error=CheckpointError)
            assert not list(folder.path.glob("*.ckpt*"))
        with CheckpointFolder(tmp_path / "trusted", trusted=True) as folder:
            path = save(folder, model, 1)
            assert folder.newest().model.predict_one({"a": 1.0}) == model.predict_one({"a": 1.0})
        raises("trusted=True", load, path, error=CheckpointError)
        assert load(path, trusted=True).predict_one({"a": 1.0}) == model.predict_one({"a": 1.0})


def test_unsupported_objects_are_named_in_errors(folder):
    model = compose.FuncTransformer(lambda x: x) | BSGDClassifier(budget=20, seed=1)
    raises("<lambda> is not found again by its name: define.*not as a lambda", save, folder, model, 1, error=CheckpointError)
    raises("_thread.lock", save, folder, threading.Lock(), 1, error=CheckpointError)
    raises("not plain JSON", folder.save, None, None, rows=1, position={"rows": {1, 2}}, error=CheckpointError)
    assert folder.newest() is None


STEPS = [
    preprocessing.StatImputer(("a", stats.Mean()), ("b", stats.Mode())),
    feature_extraction.TargetAgg(by="b", how=stats.Mean()),
    compose.SelectType(numbers.Number),
    compose.TransformerUnion(compose.Select("a") | preprocessing.StandardScaler(), preprocessing.OneHotEncoder()),
    multiclass.OneVsRestClassifier(BSGDClassifier(budget=5, seed=1)),
    ensemble.LeveragingBaggingClassifier(linear_model.PAClassifier(), seed=1),
    utils.Rolling(metrics.LogLoss, window_size=5),
]


@pytest.mark.parametrize("step", STEPS, ids=repr)
def test_common_models_need_no_trust(folder, step):
    rows = [({"a": i / 7, "b": "xyz"[i % 3]}, i % 2 == 0) for i in range(40)]
    for x, y in rows:
        if hasattr(step, "predict_one"):
            step.learn_one({"a": x["a"]}, y)
        elif isinstance(step, utils.Rolling):
            step.update(y, {True: x["a"] / 6, False: 1 - x["a"] / 6})
        else:
            learn = (lambda x, y=y: step.learn_one(x, y)) if step._supervised else step.learn_one
            learn(x)
    path = save(folder, step, 1)
    first = path.read_bytes()
    assert save(folder, read_checkpoint(path).model, 1).read_bytes() == first


@pytest.mark.thorough
def test_bytes_of_sets_do_not_depend_on_the_hash_seed(tmp_path, monkeypatch):
    script = (
        "import sys\nfrom river import preprocessing\n"
        "from streamsvm.stream import CheckpointFolder\nfrom streamsvm.stream.checkpoint import read_checkpoint\n"
        "model = preprocessing.OneHotEncoder()\n"
        "for i in range(30): model.learn_one({'a': f'word {i % 11}', 'b': i % 7})\n"
        "shared = {'x', 'y', ('z', 1), frozenset('pqrs')}\n"
        "with CheckpointFolder(sys.argv[1]) as folder:\n"
        "    path = folder.save([model, shared, [shared, frozenset('abc')]], None, rows=1, position={})\n"
        "model, first, (second, third) = read_checkpoint(path).model\n"
        "assert first is second and first == shared and third == frozenset('abc') and type(third) is frozenset\n"
        "assert model.values['b'] == set(range(7))\n"
    )
    places = [tmp_path / seed for seed in "12"]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-c", script, str(places[0])], check=True, env=environment)
    monkeypatch.setattr(sys, "argv", ["", str(places[1])])
    exec(script, {})  # with the hash seed of this process
    assert len({next(place.glob("*.ckpt")).read_bytes() for place in places}) == 1


def test_model_with_corrupt_numbers_is_refused(folder, tmp_path, monkeypatch):
    model = learned()[-1]
    snapshot = bytearray(model._store.snapshot())
    place = SupportVectorStore._layout.header.fields["n_support"][1]
    snapshot[place : place + 8] = (10**6).to_bytes(8, "little")  # more support vectors than fit into the store
    with monkeypatch.context() as patch:
        patch.setattr(SupportVectorStore, "snapshot", lambda _: bytes(snapshot))
        with pytest.raises(CheckpointError, match="not written: it could not be loaded again: .*1000000 support vectors"):
            save(folder, model, 1)
    path = save(folder, model, 2)
    tree, arrays = taken_apart(path)
    (saved,) = (name for name, array in arrays.items() if array.nbytes == len(snapshot))
    arrays[saved] = np.frombuffer(bytes(snapshot), np.uint8)
    raises("1000000 support vectors", load, repacked(path, json.dumps(tree).encode(), arrays), error=CheckpointError)
