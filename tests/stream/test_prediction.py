"""The prediction loop: resuming, refused rows, and models of other columns."""

import warnings

import pytest
from river import datasets, preprocessing, tree

from streamsvm import BSGDClassifier
from streamsvm.stream import CheckpointFolder, FileSink, IterableSource, PredictionLoop, StreamError
from streamsvm.stream.tables import TableEncoder


@pytest.fixture(scope="module")
def model():
    model = preprocessing.StandardScaler() | BSGDClassifier(budget=20, seed=1)
    for x, y in datasets.Bananas().take(200):
        model.learn_one(x, y)
    return model


def rows(n=300):
    return [(x, y) for x, y in datasets.Bananas().take(n)]


def test_predictions_after_the_checkpoint_are_dropped_and_made_again(model, tmp_path):
    with CheckpointFolder(tmp_path / "state") as folder:
        broken = [*rows(120), ({"1": "text"}, None), *rows(300)[120:]]
        with FileSink(tmp_path / "out.csv") as sink, pytest.raises(StreamError, match="row 121.*feature '1' is 'text'"):
            PredictionLoop(IterableSource(broken), model, sink, checkpoints=folder, checkpoint_every=50).run()
        assert len((tmp_path / "out.csv").read_text().splitlines()) > 101  # also those after the checkpoint
        with FileSink(tmp_path / "out.csv") as sink:
            loop = PredictionLoop(IterableSource(broken), model, sink, checkpoints=folder, on_error="skip")
            assert loop.rows == 100
            progress = loop.run()
    assert (progress.rows, progress.predicted, progress.ended, dict(progress.refused)) == (301, 300, True, {"not a number": 1})
    records = [line.split(",")[:3] for line in (tmp_path / "out.csv").read_text().splitlines()[1:]]
    expected = [(i, str(model.predict_one(x)), str(y)) for i, (x, y) in enumerate(broken) if i != 120]
    assert [(int(row), y_pred, y_true) for row, y_pred, y_true in records] == expected


def test_rows_without_any_known_feature(model, tmp_path):
    strange, words = [({"x": 1.0}, None)] * 5, r"the rows have none of the columns that the model has learned \(they have 'x'; "
    with pytest.warns(UserWarning, match=words), pytest.raises(StreamError, match=f"to the end, {words}learned were '1', '2'"):
        PredictionLoop(IterableSource(strange), model).run()
    with pytest.warns(UserWarning, match=words):
        assert PredictionLoop(IterableSource([*strange, *rows(5)]), model).run().predicted == 10
    with CheckpointFolder(tmp_path / "state") as folder:  # the counts of columns are in the checkpoint
        with pytest.warns(UserWarning, match=words):
            PredictionLoop(IterableSource([*strange, *rows(5)]), model, checkpoints=folder).run(3)
        loop = PredictionLoop(IterableSource([*strange, *rows(5)]), model, checkpoints=folder)
        assert loop.columns.counts["unknown_columns"] == {"x": 3}
        with pytest.warns(UserWarning, match=words):
            loop.run()
    assert loop.columns.rows == 10
    assert loop.columns.messages == ["column 'x' was never learned: it is left out (5 of 10 rows)"]


@pytest.mark.parametrize(
    ("suffix", "first"), [("csv", "0,,False,"), ("jsonl", '{"row":0,"y_pred":null,"y_true":false,"probability":null}')]
)
def test_a_model_that_has_learned_nothing_predicts_none(tmp_path, suffix, first):
    with FileSink(path := tmp_path / f"out.{suffix}") as sink:
        assert PredictionLoop(IterableSource(rows(3)), tree.HoeffdingTreeClassifier(), sink).run().predicted == 3
    assert path.read_text().replace(" ", "").splitlines()[suffix == "csv"] == first


def test_missing_learned_columns_give_a_warning():
    plain = BSGDClassifier(budget=5)
    encoded = TableEncoder("city:category") | BSGDClassifier(budget=5)
    for i in range(20):
        plain.learn_one({"a": float(i % 3), "b": float(i % 2)}, bool(i % 2))
        encoded.learn_one({"a": float(i % 3), "city": "Oslo"}, bool(i % 2))
    for learned, x, words in (
        (plain, {"a": 1.0, "B": 2.0}, "'b' is gone (it counts as missing), 'B' is new. This is said once"),
        (encoded, {"a": 1.0, "town": "Oslo"}, "'city' is gone (it counts as missing), 'town' is new. This is said once"),
        (preprocessing.StandardScaler() | plain, {"a": 1.0}, ""),  # it has learned nothing, so nothing is missing
        (plain, {"b": 1.0, "a": 2.0, "more": 3.0}, ""),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            PredictionLoop(IterableSource([(x, None)] * 300), learned).run()
        texts = [str(warning.message).partition("that the model has learned, ")[2] for warning in caught]
        assert texts == [words] * bool(words)
