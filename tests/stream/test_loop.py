"""The learning loop: scores, order of learning, kills, errors, and options."""

import math

import pytest
from river import base, datasets, ensemble, evaluate, linear_model, metrics, preprocessing

from killing import whole_and_killed
from loops import make_model
from refused import raises
from streamsvm import BSGDClassifier, BSGDRegressor
from streamsvm.learners import OnlineLinearSVR
from streamsvm.stream import CheckpointFolder, FileSink, IterableSource, LearningLoop, PredictionLoop, StreamError


def bananas(rows=1000):
    return list(datasets.Bananas().take(rows))


@pytest.fixture
def csv_file(tmp_path):
    path = tmp_path / "bananas.csv"
    path.write_text("a,b,y\n" + "".join(f"{x['1']!r},{x['2']!r},{y}\n" for x, y in bananas(5300)))
    return path


def files(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*.ckpt")}


OF_NUMBERS = preprocessing.StandardScaler() | preprocessing.TargetStandardScaler(BSGDRegressor(budget=30, seed=1))


@pytest.mark.parametrize(
    ("model", "metric"),
    [
        *((make_model(), metric) for metric in (metrics.Accuracy(), metrics.ROCAUC(), metrics.LogLoss())),
        *(
            (model, metric)
            for model in (OF_NUMBERS, preprocessing.StandardScaler() | linear_model.LinearRegression())
            for metric in (None, metrics.RMSE(), metrics.R2(), metrics.SMAPE())
        ),
    ],
    ids=repr,
)
def test_scores_are_those_of_river(model, metric):
    rows = bananas() if "Classifier" in repr(model) else list(datasets.TrumpApproval())
    progress = LearningLoop(IterableSource(rows), model.clone(), metric and metric.clone()).run()
    expected = evaluate.progressive_val_score(rows, model.clone(), (metric or metrics.MAE()).clone())
    assert progress.metric == pytest.approx(expected.get(), abs=1e-12)
    assert progress.metric_name == type(expected).__name__
    assert (progress.rows, progress.learned, progress.ended, progress.interrupted) == (len(rows), len(rows), True, False)


@pytest.mark.thorough
def test_a_run_that_is_killed_at_random_rows_leaves_the_same_files(csv_file, tmp_path):
    uninterrupted, killed = whole_and_killed(tmp_path, 8, 5300, str(csv_file), {"label": "y", "passthrough": ["y"]})
    assert files(killed) == files(uninterrupted)


def test_stop_ends_after_the_current_row_with_a_checkpoint(tmp_path):
    with CheckpointFolder(tmp_path) as folder:

        def rows():
            for number, row in enumerate(bananas()):
                if number == 500:
                    loop.stop()
                yield row

        loop = LearningLoop(IterableSource(rows()), make_model(), checkpoints=folder)
        progress = loop.run()
        assert (progress.rows, progress.interrupted) == (501, True)
        assert folder.newest().header["rows"] == 501


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "1.5", None, [1.0]])
def test_a_bad_row_is_named_and_the_checkpoint_stays(tmp_path, bad):
    rows = bananas(300)
    rows[250] = ({"1": 0.5, "2": bad}, True)
    with CheckpointFolder(tmp_path) as folder:
        loop = LearningLoop(
            IterableSource(rows, "sensor"), BSGDClassifier(budget=30, seed=1), checkpoints=folder, checkpoint_every=100
        )
        raises(r"sensor, row 251: feature '2' is", loop.run, error=StreamError)
        assert folder.newest().header["rows"] == 200


class FailsAt(base.Transformer):
    """Fails in the middle of a row."""

    error = None

    def learn_one(self, x):
        if x["1"] == 99.0:
            raise self.error

    def transform_one(self, x):
        return x


@pytest.mark.parametrize("error", [KeyError("a"), OverflowError("too large"), RuntimeError("odd"), ValueError("odd")], ids=repr)
def test_after_an_error_the_loop_cannot_run_again(tmp_path, monkeypatch, error):
    monkeypatch.setattr(FailsAt, "error", error)
    rows = bananas(300)
    rows[150] = ({"1": 99.0, "2": 1.0}, True)
    with CheckpointFolder(tmp_path, trusted=True) as folder:

        def loop(rows):
            source = IterableSource(rows, "sensor")
            return LearningLoop(source, FailsAt() | make_model(), checkpoints=folder, checkpoint_every=100)

        failed = loop(rows)
        with pytest.raises(StreamError, match="sensor, row 151: ") as caught:
            failed.run()
        assert ("KeyError" in str(caught.value)) == isinstance(error, KeyError)
        for _ in range(2):
            raises("has failed. Make a new source, sink and loop, which continue", failed.run, error=RuntimeError)
        assert folder.newest().header["rows"] == 100
        rows[150] = bananas(151)[150]
        assert loop(rows).run().rows == 300
        resumed = folder.newest()
    with CheckpointFolder(tmp_path / "uninterrupted", trusted=True) as folder:
        loop(rows).run()
        assert folder.newest().header == resumed.header


def test_a_loop_can_run_again():
    shown = []
    loop = LearningLoop(IterableSource(bananas(300)), make_model(), on_progress=shown.append)
    assert [loop.run(piece).rows for piece in (0, 1, 99, None, 5, None)] == [0, 1, 100, 300, 300, 300]
    assert (shown[-1].ended, shown[-1].metric_name, shown[-1].rows) == (True, "Accuracy", 300)
    raises("max_rows must be at least 0, not -1", loop.run, -1)
    loop.stop()
    assert loop.run().interrupted
    raises("was stopped", loop.run, error=RuntimeError)


def test_a_sink_must_return_a_position(tmp_path):
    class Silent(FileSink):
        def flush(self):
            super().flush()

    with CheckpointFolder(tmp_path / "state") as folder, Silent(tmp_path / "out.csv") as sink:
        loop = LearningLoop(IterableSource(bananas(10)), make_model(), sink=sink, checkpoints=folder)
        raises(r"its flush\(\) must return its position as a mapping, not None", loop.run, error=StreamError)


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        (make_model(), {"checkpoint_every": 0}, "at least 1"),
        (make_model(), {"window": 0}, "at least 1"),
        (make_model(), {"error_limit": -1}, "refused rows must be"),
        (make_model(), {"error_share": 1.5}, "refused rows must be"),
        *((make_model(), {"checkpoint_seconds": wrong}, "must be above 0") for wrong in (0.0, -1.0, math.nan)),
        *((make_model(), {"classes": wrong}, "classes must be") for wrong in (["a"], ["a", "a"], [1, True], [("a",), "b"])),
        (make_model(max_classes=2), {"classes": ["a", "b", "c"]}, "3 classes are declared, and the model has max_classes=2"),
        (OnlineLinearSVR(), {"classes": ["a", "b"]}, "classes are declared, and OnlineLinearSVR predicts numbers"),
        (BSGDRegressor(), {"metric": metrics.Accuracy()}, "Accuracy is not a metric of river for regressors; try MAE"),
        (make_model(), {"metric": metrics.MAE()}, "MAE is not a metric of river for classifiers"),
        (make_model(), {"metric": metrics.Accuracy}, r"must be an instance, such as Accuracy\(\), not the class"),
        (make_model(), {"metric": metrics.F1(pos_val="spam")}, "pos_val works for True only"),
        (make_model(), {"positive": "spam"}, "Accuracy treats all labels alike"),
        (
            ensemble.VotingClassifier([linear_model.Perceptron(), linear_model.PAClassifier()]),
            {"metric": metrics.LogLoss()},
            "LogLoss needs probabilities, but VotingClassifier has none: try Accuracy",
        ),
    ],
)
def test_contradictory_options_are_refused(model, options, reason):
    raises(reason, LearningLoop, IterableSource([]), model, **options)


def test_without_a_model_a_checkpoint_is_needed(tmp_path):
    with CheckpointFolder(tmp_path) as checkpoints:
        for options in ({}, {"checkpoints": checkpoints}):
            raises("there is none yet: give a model", LearningLoop, IterableSource([]), None, **options)


@pytest.mark.parametrize("model", ["bsgd", BSGDClassifier, preprocessing.StandardScaler()], ids=repr)
def test_objects_that_are_not_models_are_refused(model):
    for loop in (LearningLoop, lambda source, model: PredictionLoop(source, model, None)):
        raises("must be a classifier or a regressor, or a pipeline that ends in one, not", loop, IterableSource([]), model)


def labelled(*runs):
    return IterableSource([({"a": float(i % 7)}, y) for n, labels in runs for i, y in enumerate(labels * n)])


def test_a_late_new_label_gives_one_warning():
    with pytest.warns(
        UserWarning, match=r"row 1,001: the label 'maybe' is new after 1,000 rows with 'no', 'yes'\. .* LearningLoop"
    ) as caught:
        LearningLoop(labelled((500, ["no", "yes"]), (1, ["maybe", "never"])), BSGDClassifier(budget=5)).run()
    assert len(caught) == 1
    for runs in ([(400, ["no", "yes"]), (1, ["maybe"])], [(1000, ["no", "yes"])]):  # early enough, and no new label
        LearningLoop(labelled(*runs), BSGDClassifier(budget=5)).run()
    LearningLoop(labelled((600, ["no"]), (1, ["yes"])), BSGDClassifier(budget=5), classes=["no", "yes"]).run()  # declared labels


def test_many_rows_without_a_label_give_a_warning_during_the_run():
    with pytest.warns(UserWarning, match=r"none of the first 1,000 rows has a label, .* The last row had 'a'"):
        progress = LearningLoop(labelled((1000, [None]), (10, ["no", "yes"])), BSGDClassifier(budget=5)).run()
    assert (progress.learned, progress.unlabelled) == (20, 1000)
