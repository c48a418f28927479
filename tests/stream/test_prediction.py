"""The prediction loop: positions that are kept, rows that are refused, models that do not fit."""

import contextlib

import pytest
from river import datasets, preprocessing, tree

from streamsvm import BSGDClassifier
from streamsvm.stream import CheckpointFolder, CSVSource, FileSink, IterableSource, PredictionLoop, StreamError
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
        assert len((tmp_path / "out.csv").read_text().splitlines()) > 101  # those after the checkpoint too
        with FileSink(tmp_path / "out.csv") as sink:
            loop = PredictionLoop(IterableSource(broken), model, sink, checkpoints=folder, on_error="skip")
            assert loop.rows == 100
            end = loop.run()
    assert (end.rows, end.predicted, end.ended, dict(end.refused)) == (301, 300, True, {"not a number": 1})
    found = [line.split(",")[:3] for line in (tmp_path / "out.csv").read_text().splitlines()[1:]]
    expected = [(i, str(model.predict_one(x)), str(y)) for i, (x, y) in enumerate(broken) if i != 120]
    assert [(int(row), y_pred, y_true) for row, y_pred, y_true in found] == expected


def test_rows_without_any_known_feature(model, tmp_path):
    strange = [({"x": 1.0}, None)] * 5
    with (
        FileSink(tmp_path / "out.csv") as sink,
        pytest.warns(UserWarning, match="row 1: the row has none of the features"),
        pytest.raises(StreamError, match="to the end, the row has none of the features that the model knows"),
    ):
        PredictionLoop(IterableSource(strange), model, sink).run()
    with FileSink(tmp_path / "out.csv") as sink, pytest.warns(UserWarning, match="none of the features"):
        assert PredictionLoop(IterableSource([*strange, *rows(5)]), model, sink).run().predicted == 10


def test_a_row_that_is_refused_after_its_prediction_abstains_from_nothing(model, tmp_path):
    for stream, rows_abstained in (([({"x": 1.0}, None)], 0), ([({"x": 1.0}, None), *rows(5)], 5)):
        with CheckpointFolder(tmp_path / "state") as folder, FileSink(tmp_path / "out.csv") as sink:
            how = {"abstain": 1.0, "on_error": "skip", "checkpoints": folder}
            loop = PredictionLoop(IterableSource(stream), model, sink, **how)  # where a warning is an error, as here
            with contextlib.suppress(StreamError):
                loop.run()
            assert (loop.predicted, loop.abstained) == (rows_abstained, rows_abstained)


@pytest.mark.parametrize(
    ("suffix", "first"), [("csv", "0,,False,"), ("jsonl", '{"row":0,"y_pred":null,"y_true":false,"probability":null}')]
)
def test_a_model_that_does_not_predict_before_it_has_learned(tmp_path, suffix, first):
    with FileSink(path := tmp_path / f"out.{suffix}") as sink:
        assert PredictionLoop(IterableSource(rows(3)), tree.HoeffdingTreeClassifier(), sink).run().predicted == 3
    assert path.read_text().replace(" ", "").splitlines()[suffix == "csv"] == first


def test_a_table_without_a_column_that_was_learned_is_warned_of(tmp_path):
    path, sink = tmp_path / "rows.csv", tmp_path / "out.csv"
    model = BSGDClassifier(budget=5)
    for i in range(20):
        model.learn_one({"a": float(i % 3), "b": float(i % 2)}, bool(i % 2))
    encoded = TableEncoder(categorical="city") | BSGDClassifier(budget=5)
    for i in range(20):
        encoded.learn_one({"a": float(i % 3), "city": "Oslo"}, bool(i % 2))
    for learned, text, words in (
        (model, "a,B,y\n1,2,True\n", r"rows.csv has no column 'b', which the model has learned: .* does not know 'B'$"),
        (preprocessing.StandardScaler() | model, None, ""),  # which has learned nothing: no complaint
        (encoded, "a,town\n1,Oslo\n", r"has no column 'city', .* does not know 'town'$"),
    ):
        if text is not None:
            path.write_text(text)
        with CSVSource(path, "y", label_needed=False) as source, FileSink(sink) as out:
            loop = PredictionLoop(source, learned, out, on_error="skip")
            if words:
                with pytest.warns(UserWarning, match=words):
                    loop.run()
            else:
                loop.run()
    path.write_text("b,a,more,y\n1,2,3,True\n")  # any order, and more of them
    with CSVSource(path, "y") as source, FileSink(sink) as out:
        assert PredictionLoop(source, model, out).run().predicted == 1
