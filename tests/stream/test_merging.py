"""Merging of the models of several partitions, with their transformers."""

import hashlib
from functools import partial

import numpy as np
import pytest
from river import compose, preprocessing

from partition_models import MAKERS, learned, numbers, save, table
from refused import raises
from saved import dumps
from streamsvm import BSCARegressor, BSGDClassifier, SVMClassifier
from streamsvm.batch import CSMOClassifier
from streamsvm.core.transformers import merge_transformers
from streamsvm.files.container import pack_container, unpack_container
from streamsvm.learners import KernelPerceptron, merging
from streamsvm.learners.preprocessing import BoundedScaler, BoundedTargetScaler
from streamsvm.stream import CheckpointError, CheckpointFolder, FollowedFolder
from streamsvm.stream.checkpoint import list_history
from streamsvm.stream.merging import CheckpointMerger, merge_models
from streamsvm.stream.tables import TableEncoder


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_equal_models_give_equal_bytes_and_do_not_change(make):
    models = [learned(make, numbers(300, seed, far)) for seed, far in enumerate((0.0, 1.0, 3.0))]
    before = [dumps(model) for model in models]
    results = [merge_models(models) for _ in range(2)]
    assert [dumps(model) for model in models] == before
    assert dumps(results[0]) == dumps(results[1])
    for x, y in numbers(50, seed=9):
        results[0].predict_one(x)
        results[0].learn_one(x, y)


def test_support_vectors_are_converted_to_the_pooled_scale():
    # Without budget maintenance, the merged model predicts the mean of both models, with any position of their rows.
    def make():
        return BoundedScaler(None) | BSGDClassifier(budget=500, kernel="linear", scaling=None, seed=0)

    models = [learned(make, numbers(150, seed, far)) for seed, far in enumerate((0.0, 5.0))]
    model = merge_models(models)
    assert model["BSGDClassifier"].n_support == sum(one_model["BSGDClassifier"].n_support for one_model in models)

    def rows_of(one_model):
        scaler, learner = one_model["BoundedScaler"], one_model["BSGDClassifier"]
        spread = np.sqrt([scaler.vars[name] for name in learner.feature_names])
        return learner.support_vectors * spread + [scaler.means[name] for name in learner.feature_names]

    ours = rows_of(model)
    for row in np.vstack([rows_of(one_model) for one_model in models]):
        assert np.abs((ours - row) / (1.0, 1000.0)).max(axis=1).min() < 1e-4


@pytest.mark.parametrize("make", [lambda: BoundedScaler(None), preprocessing.StandardScaler])
def test_scalers_become_the_scaler_of_all_rows(make):
    streams = [list(numbers(40, 0)), list(numbers(5, 1, 4.0)), [({"a": 1.0, "other": 2.0}, 0)] * 3, []]
    parts, scaler_of_all = [make() for _ in streams], make()
    for part, rows in zip(parts, streams, strict=True):
        for x, _ in rows:
            part.learn_one(x)
            scaler_of_all.learn_one(x)
    units = merge_transformers(parts[0], parts[1:])
    assert dict(parts[0].counts) == dict(scaler_of_all.counts)
    for value, expected in ((parts[0].means, scaler_of_all.means), (parts[0].vars, scaler_of_all.vars)):
        assert dict(value) == pytest.approx(dict(expected))
    fresh = make()
    for x, _ in streams[0]:
        fresh.learn_one(x)
    x = {"a": 0.3, "b": 500.0}
    for name, value in fresh.transform_one(x).items():
        factor, shift = units[0][name]
        assert value * factor + shift == pytest.approx(parts[0].transform_one(x)[name])


def test_targets_are_converted_to_the_pooled_scale(monkeypatch):
    monkeypatch.setattr(merging, "_refit_coefficients", lambda *_: None)
    models = []
    for seed, (offset, spread) in enumerate([(0.0, 1.0), (100.0, 50.0)]):
        x = np.random.default_rng(seed).random(150)
        rows = [({"a": value}, offset + spread * value) for value in x.tolist()]
        kind = partial(BSCARegressor, budget=500, scaling=None, gamma=2.0, seed=0)
        models.append(learned(lambda kind=kind: BoundedTargetScaler(kind()), rows))
    model = merge_models(models)
    for a in (0.2, 0.5, 0.8):  # the mean of both models, whose targets are far apart
        expected = np.mean([one_model.predict_one({"a": a}) for one_model in models])
        assert model.predict_one({"a": a}) == pytest.approx(expected, abs=0.01)


def test_merged_encoders_know_all_names():
    def make():
        encoder = TableEncoder("city:category", scaler=BoundedScaler(), when_missing="mean")
        return encoder | BSGDClassifier(budget=60, scaling=None, seed=0)

    parts = [learned(make, [(x, y) for x, y in table(600, 7) if x["city"] in cities]) for cities in ("ab", "bc")]
    model = merge_models(parts)
    encoder = model["TableEncoder"]
    assert set(encoder.learned_columns) == {"a", "b", "city"}
    features = encoder.transform_one({"a": 0.0, "b": 0.0, "city": "c"})
    assert features["city=c"] == 1.0
    assert set(model["BSGDClassifier"].feature_names) == {"a", "b", "city=a", "city=b", "city=c"}
    right = np.mean([model.predict_one(x) == y for x, y in table(500, 8)])
    assert right > 0.8


@pytest.mark.parametrize(
    ("makers", "reason"),
    [
        ([lambda: BoundedScaler() | SVMClassifier(effort="low")] * 2, "SVMClassifier cannot be merged.*BSGDClassifier.*BSCA"),
        ([KernelPerceptron] * 2, "KernelPerceptron cannot be merged.*BSGDClassifier or BSCA"),
        ([lambda: BoundedScaler(4.0) | BSGDClassifier(), lambda: BoundedScaler() | BSGDClassifier()], "deviations=4.0 and 8.0"),
        ([lambda: BoundedScaler() | BSGDClassifier(), BSGDClassifier], "different steps"),
        (
            [lambda: preprocessing.StandardScaler() | BSGDClassifier(), MAKERS["bounded"]],
            "a StandardScaler cannot be merged with",
        ),
        ([lambda: preprocessing.MinMaxScaler() | BSGDClassifier()] * 2, "models behind a MinMaxScaler cannot be merged"),
        ([lambda: compose.Pipeline(BoundedScaler(), preprocessing.StandardScaler(), BSGDClassifier())] * 2, "2 transformers"),
    ],
)
def test_models_that_cannot_be_merged_are_refused(makers, reason):
    models = [learned(make, []) for make in makers]
    raises(reason, merge_models, models)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([{"max_values": 2, "buckets": 32}, {"max_values": 2, "buckets": 32}], "column 'city' has 3 values .* max_values=2"),
        ([{"columns": "city:category,b:drop"}, {"columns": "city:category,a:drop"}], "columns="),
        ([{"scaler": "standard"}, {}], "cannot be merged with a"),
        ([{"buckets": 3}, {"buckets": 32}], "buckets=3 and 32"),
    ],
)
def test_encoders_that_cannot_be_merged_do_not_change(options, reason):
    encoders = [TableEncoder(**{"columns": "city:category", **encoder_options}) for encoder_options in options]
    for encoder, cities in zip(encoders, ("ab", "bc"), strict=True):
        for x, _ in table(60):
            if x["city"] in cities:
                encoder.learn_one(x)
    before = dumps(encoders[0])
    raises(reason, encoders[0].merge_with, encoders[1])
    assert dumps(encoders[0]) == before


# Folders ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def parts(tmp_path):
    for number, n in ((2, 120), (10, 80)):
        save(tmp_path / "state" / f"partition-{number}", n, number, label="y", offset=n)
    return tmp_path / "state"


@pytest.fixture
def result(tmp_path):
    with CheckpointFolder(tmp_path / "merged") as folder:
        yield folder


def test_each_change_gives_a_model_for_followers(parts, result):
    merger, follower = CheckpointMerger([parts], result), FollowedFolder(result.path, seconds=0.0)
    assert merger.merge_if_changed() == (200, {"partition-2": 120, "partition-10": 80})
    assert merger.merge_if_changed() is None
    assert follower.read_newer().version == 200
    save(parts / "partition-10", 90, 10, label="y")
    save(parts / "partition-11", 30, 11, label="y")  # a folder that was added meanwhile
    assert merger.merge_if_changed().rows == 240
    assert follower.read_newer().version == 240
    header = result.newest().header
    assert (header["kind"], header["position"]) == ("merged", {"label": "y"})
    assert header["parts"] == {"partition-2": 120, "partition-10": 90, "partition-11": 30}


def test_a_corrupt_checkpoint_gives_a_warning_and_the_previous_model_is_used(parts, result):
    merger = CheckpointMerger([parts], result)
    merger.merge_if_changed()
    save(parts / "partition-2", 130, 2, label="y")
    for file in (parts / "partition-10").glob("*.ckpt"):
        file.write_bytes(file.read_bytes()[:-40])
    with pytest.warns(UserWarning, match="the earlier model stays"):
        assert merger.merge_if_changed().rows == 210
    assert merger.merge_if_changed() is None


def test_a_part_that_was_rolled_back_is_merged_again(parts, result):
    merger, follower = CheckpointMerger([parts], result), FollowedFolder(result.path, seconds=0.0)
    save(parts / "partition-2", 150, 2, label="y")
    assert merger.merge_if_changed().rows == follower.read_newer().version == 230
    with CheckpointFolder(parts / "partition-2") as folder:
        folder.roll_back(list_history(folder.path)[1])
    with pytest.warns(UserWarning, match="a model of 230 rows, and the parts have 200 together, as one was rolled back"):
        assert merger.merge_if_changed().rows == follower.read_newer().version == 200
    assert [(saved.rows, saved.is_aside) for saved in follower.history()] == [(230, True), (200, False)]
    save(parts / "partition-10", 85, 10, label="y")
    assert CheckpointMerger([parts], result).merge_if_changed().rows == follower.read_newer().version == 205
    save(parts / "partition-2", 170, 2, label="y")
    assert merger.merge_if_changed().rows == follower.read_newer().version == 255
    assert [saved.rows for saved in follower.history()] == [255, 205]


def newer(data):
    """Return a checkpoint with the number of a later version."""
    arrays, strings = unpack_container(data)
    changed = pack_container(arrays, strings).replace(b'"version":"1"', b'"version":"9"')[:-32]
    return changed + hashlib.sha256(changed).digest()


@pytest.mark.parametrize(
    ("change", "reason"),
    [(lambda _: b"nothing", "the others are"), (newer, "version 9 of the format.*upgrade it: the others are")],
)
def test_an_unreadable_part_is_left_out(parts, result, change, reason):
    (file,) = (parts / "partition-10").glob("*.ckpt")
    file.write_bytes(change(file.read_bytes()))
    with pytest.warns(UserWarning, match=f"{reason} merged without it"):
        assert CheckpointMerger([parts], result).merge_if_changed() == (120, {"partition-2": 120})


def test_folders_that_do_not_fit_are_refused(parts, result, tmp_path):
    merger = CheckpointMerger([parts], result)
    merger.merge_if_changed()
    for file in (parts / "partition-10").glob("*.ckpt"):
        file.unlink()
    save(parts / "partition-10", 10, 10, label="y")
    raises("a model of 200 rows, and the parts have 130 together", merger.merge_if_changed, error=CheckpointError)
    save(parts / "partition-10", 200, 10, label="z")
    raises("read their rows differently", merger.merge_if_changed, error=CheckpointError)
    raises("named twice", CheckpointMerger, [parts, parts / "partition-2"], result, error=CheckpointError)
    raises("is not a folder", CheckpointMerger, [tmp_path / "none"], result, error=CheckpointError)
    with CheckpointFolder(parts / "partition-2") as own, pytest.raises(CheckpointError, match="of a learner, not merged"):
        CheckpointMerger([parts], own)


def test_a_folder_with_another_object_gives_a_warning(result, tmp_path):
    with CheckpointFolder(tmp_path / "thing") as folder:
        folder.save({"a": 1}, None, rows=3, position={})
    merger = CheckpointMerger([tmp_path / "thing"], result)
    with pytest.warns(UserWarning, match="holds a dict, which is not a model"):
        assert merger.merge_if_changed() is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(({"rows": rows}, "a model that is not a checkpoint: its number of rows is missing") for rows in (-1, "many", None)),
        ({"kind": "checkpoint"}, "checkpoints of a learner, not merged models"),
    ],
)
def test_an_output_with_another_checkpoint_is_refused(parts, result, change, message, monkeypatch):
    CheckpointMerger([parts], result).merge_if_changed()
    newest = result.newest()
    monkeypatch.setattr(result, "newest", lambda: newest._replace(header={**newest.header, **change}))
    with pytest.raises(CheckpointError, match=f"merged holds {message}"):
        CheckpointMerger([parts], result)


@pytest.mark.parametrize("number", [1, 11])
def test_a_part_that_cannot_learn_from_a_stream_is_refused(parts, result, number):
    with CheckpointFolder(parts / f"partition-{number}") as folder:
        folder.save(CSMOClassifier(), None, rows=3, position={"label": "y"})
    raises("CSMOClassifier", CheckpointMerger([parts], result).merge_if_changed, error=CheckpointError)
