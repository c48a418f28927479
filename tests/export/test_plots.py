"""Plots show the decisions of the model and the points of the curve."""

import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure
from river import datasets, feature_extraction, linear_model, preprocessing, tree

import streamsvm
from problems import learned_by
from refused import refused
from streamsvm import BSCAClassifier, BSGDClassifier, BSGDRegressor, OneClassBSGD
from streamsvm.export import plots
from streamsvm.export.plots import DrawingError, draw_boundary, draw_curve, save_plot
from streamsvm.learners import OnlineLinearSVC
from streamsvm.learners.preprocessing import BoundedScaler, BoundedTargetScaler
from streamsvm.stream import CurvePoint, LearningCurve
from streamsvm.stream.tables import TableEncoder

SCALERS = {
    "bounded": BoundedScaler(),
    "standard": preprocessing.StandardScaler(),
    "centred only": preprocessing.StandardScaler(with_std=False),
    "without moments": preprocessing.MinMaxScaler(),
    "moments of another kind": preprocessing.AdaptiveStandardScaler(),
    "table": TableEncoder("id:drop", scaler=BoundedScaler()),
    "table as it is": TableEncoder(scaler=None),
}


def iter_bananas(rows=600, spread=(1000.0, 0.01), centre=(5000.0, 7.0), classes=2):
    for x, y in datasets.Bananas().take(rows):
        point = {"a": centre[0] + spread[0] * x["1"], "b": centre[1] + spread[1] * x["2"]}
        yield point, y if classes == 2 else f"{y}{x['1'] > 0}"


def learn(model, rows=None):
    learned_by(model, iter_bananas() if rows is None else rows)
    return model


def draw_on_new_axes(model, rows=()):
    axes = Figure().add_subplot()
    draw_boundary(axes, model, rows)
    return axes


def list_boundary_points(axes):
    """Return the points of the boundary lines, in the units of the rows."""
    lines = [
        collection for collection in axes.collections if isinstance(collection, ContourSet) and list(collection.levels) == [0.0]
    ]
    return np.concatenate([path.vertices for collection in lines for path in collection.get_paths()])


@pytest.mark.parametrize("scaler", SCALERS)
def test_boundary_and_support_vectors_are_in_the_units_of_the_rows(scaler):
    spread = (1.0, 1.0) if scaler == "table as it is" else (1.0, 0.5) if scaler == "centred only" else (1000.0, 0.01)
    model = learn(SCALERS[scaler].clone() | BSGDClassifier(budget=40, seed=1), iter_bananas(spread=spread))
    before = pickle.dumps(model[-1])
    axes = draw_on_new_axes(model)
    assert pickle.dumps(model[-1]) == before
    names, learner = ["a", "b"], model[-1]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("feature a", "feature b")
    assert learner.feature_names == names
    support = axes.collections[-1].get_offsets()
    assert len(support) == learner.n_support
    transformed = [
        [model[0].transform_one(dict(zip(names, point, strict=True)))[name] for name in names] for point in support.tolist()
    ]
    assert np.allclose(transformed, learner.scale_in_use.inverse_transform(learner.support_vectors), atol=1e-4)

    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    assert all(left < x < right and bottom < y < top for x, y in support)
    steps = np.array([right - left, top - bottom]) / 100
    line = list_boundary_points(axes)
    assert len(line) > 50
    for point in line[::7].tolist():  # the prediction changes across the line
        neighbours = [(point[0] + i * steps[0], point[1] + j * steps[1]) for i in (-1, 0, 1) for j in (-1, 0, 1)]
        assert {model.predict_one(dict(zip(names, neighbour, strict=True))) for neighbour in neighbours} == {True, False}


@pytest.mark.parametrize(
    "learner",
    [BSGDClassifier(budget=60, seed=1), BSCAClassifier(budget=60, seed=1), tree.HoeffdingTreeClassifier(grace_period=50)],
)
def test_regions_of_several_classes(learner):
    model = learn(preprocessing.StandardScaler() | learner.clone(), iter_bananas(1500, classes=4))
    axes = draw_on_new_axes(model)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[:4] == [f"label {y}{side}" for y in (False, True) for side in (False, True)]
    regions = [part for part in axes.collections if isinstance(part, ContourSet) and part.filled]
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    rng, n_right = np.random.default_rng(0), 0
    for x, y in rng.uniform((left, bottom), (right, top), (300, 2)).tolist():
        inside = [number for number, region in enumerate(regions) if any(p.contains_point((x, y)) for p in region.get_paths())]
        n_right += [f"label {model.predict_one({'a': x, 'b': y})}"] == [labels[number] for number in inside]
    assert n_right > 285  # the others are within one step of the grid from a line


def test_every_kind_of_model_is_drawn():
    scaler = preprocessing.StandardScaler
    anomaly_detector = scaler() | OneClassBSGD(budget=30, seed=1)
    regressor = scaler() | BSGDRegressor(budget=30, seed=1)
    for x, y in iter_bananas(300):
        anomaly_detector.learn_one(x)
        regressor.learn_one(x, float(y))
    assert len(list_boundary_points(draw_on_new_axes(anomaly_detector))) > 20
    assert draw_on_new_axes(regressor).figure.axes[1].get_ylabel() == "prediction"
    assert len(list_boundary_points(draw_on_new_axes(learn(scaler() | linear_model.LogisticRegression())))) > 20
    assert len(list_boundary_points(draw_on_new_axes(learn(scaler() | linear_model.Perceptron())))) > 20
    features = feature_extraction.PolynomialExtender()
    assert len(list_boundary_points(draw_on_new_axes(learn(scaler() | features | linear_model.LogisticRegression())))) > 20
    one_label = learn(scaler() | BSGDClassifier(budget=30, seed=1), [(x, "only") for x, _ in iter_bananas(50)])
    assert draw_on_new_axes(one_label).collections
    constant = learn(scaler() | BSGDClassifier(budget=30, seed=1), [({**x, "b": 3.0}, y) for x, y in iter_bananas(300)])
    assert set(draw_on_new_axes(constant).collections[-1].get_offsets()[:, 1].tolist()) == {3.0}


def test_a_regressor_with_scaled_targets_is_drawn():
    model = preprocessing.StandardScaler() | BoundedTargetScaler(BSGDRegressor(budget=30, seed=1))
    for x, y in iter_bananas(300):
        model.learn_one(x, 40.0 + 3.0 * y)
    axes, learner = draw_on_new_axes(model), model[-1].regressor
    assert axes.get_title().startswith("BSGDRegressor, 30 support vectors, ")
    support = axes.collections[-1].get_offsets().tolist()
    scaled = [model[0].transform_one({"a": a, "b": b}) for a, b in support]
    vectors = learner.scale_in_use.inverse_transform(learner.support_vectors)
    assert np.allclose([[x["a"], x["b"]] for x in scaled], vectors, atol=1e-4)


def test_rows_are_drawn_in_the_colour_of_their_label():
    model, rows = learn(preprocessing.StandardScaler() | BSGDClassifier(budget=30, seed=1)), list(iter_bananas(100))
    axes = draw_on_new_axes(model, rows)
    points = [part for part in axes.collections if not isinstance(part, ContourSet)][:2]
    for label, part in zip((False, True), points, strict=True):
        assert part.get_offsets().tolist() == [[x["a"], x["b"]] for x, y in rows if y is label]
    red, blue = (part.get_facecolor()[0] for part in points)
    assert (red[0] > red[2], blue[0] < blue[2]) == (True, True)


def test_models_that_cannot_be_drawn_are_refused():
    scaler = preprocessing.StandardScaler
    phishing = learn(scaler() | BSGDClassifier(budget=9), datasets.Phishing().take(20))
    table = learn(
        TableEncoder("c:category") | BSGDClassifier(budget=9), [({"c": "x", "b": x["b"]}, y) for x, y in iter_bananas(20)]
    )
    for model, reason in (
        (phishing, "drawn for two features, and the model has 9"),
        (scaler() | BSGDClassifier(budget=9), "the model has learned none"),
        (table, "its features are computed from others than 'b' and 'c=x'"),
        (learn(tree.HoeffdingTreeClassifier()), "the features of HoeffdingTreeClassifier are unknown"),
        (learn(OnlineLinearSVC()), "the range of 'a' and 'b' is unknown"),
        (learn(scaler() | feature_extraction.PolynomialExtender() | BSGDClassifier(budget=9)), "the model has 5"),
    ):
        refused(reason, draw_on_new_axes, model, error=DrawingError)


def make_curve():
    curve = LearningCurve("F1", 100)
    for rows in range(1, 51):
        curve.add(CurvePoint(rows, math.nan if rows < 4 else 0.5 + rows / 200, 0.6))
    return curve


def test_learning_curves():
    axes = Figure().add_subplot()
    draw_curve(axes, make_curve())
    all_rows, last_rows = axes.lines
    assert all_rows.get_xdata().tolist() == list(range(1, 51))
    assert np.nanmax(all_rows.get_ydata()) == 0.75
    assert np.isnan(all_rows.get_ydata()[:3]).all()
    assert (last_rows.get_label(), axes.get_ylabel()) == ("last 100 rows", "F1")
    curve = LearningCurve("F1", 100)
    curve.add(CurvePoint(1, 0.5, 0.5, 0.25))
    axes = Figure().add_subplot()
    draw_curve(axes, curve)
    assert [(line.get_label(), line.get_ydata().tolist()) for line in axes.lines[2:]] == [("guessing", [0.25])]


def test_bars_of_importance_and_contributions():
    model = BSGDClassifier(30)
    rows = [({f"f{j}": float((i * (j + 3)) % 7) for j in range(20)}, "yes" if i % 7 > 3 else "no") for i in range(200)]
    learned_by(model, rows)
    ranking = streamsvm.importance(model, [x for x, _ in rows], [y for _, y in rows])
    axes = ranking.plot(Figure().add_subplot())
    assert [bar.get_width() for bar in axes.patches] == sorted(ranking.error_increases.values(), reverse=True)[:15]
    unlabelled = streamsvm.importance(model, [x for x, _ in rows])
    axes = unlabelled.plot(Figure().add_subplot())
    assert [text.get_text() for text in axes.get_yticklabels()] == list(unlabelled.mean_contributions)[:15]
    explanation = model.explain_one(rows[5][0])
    axes = explanation.plot(Figure().add_subplot())
    widths = [bar.get_width() for bar in axes.patches]
    assert widths[:12] == list(explanation.contributions.values())[:12]
    assert explanation.typical + sum(widths) == pytest.approx(explanation.decision)
    assert axes.get_yticklabels()[-1].get_text() == "9 others"


@pytest.mark.parametrize(
    ("suffix", "magic"),
    [
        ("png", b"\x89PNG"),
        ("JPG", b"\xff\xd8"),
        *(pytest.param(*case, marks=pytest.mark.thorough) for case in (("svg", b"<?xml"), ("pdf", b"%PDF"))),
    ],
)
def test_the_suffix_is_the_format_and_existing_files_are_replaced(tmp_path, suffix, magic):
    path = tmp_path / f"picture.{suffix}"
    path.write_bytes(b"an older one")
    model = learn(preprocessing.StandardScaler() | BSGDClassifier(budget=9, seed=1))
    assert save_plot(path, model, make_curve()) == []
    assert path.read_bytes().startswith(magic)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_parts_that_are_left_out_are_named(tmp_path):
    path = tmp_path / "picture.png"
    two_features = learn(preprocessing.StandardScaler() | BSGDClassifier(budget=9, seed=1))
    nine_features = learn(preprocessing.StandardScaler() | BSGDClassifier(budget=9, seed=1), datasets.Phishing().take(20))
    assert save_plot(path, two_features) == ["no learning curve: the model was saved without one"]
    assert save_plot(path, two_features, LearningCurve("F1", 9)) == ["no learning curve: no row was scored yet"]
    assert save_plot(path, nine_features, make_curve()) == [
        "no decision boundary: it is drawn for two features, and the model has 9"
    ]
    before = path.read_bytes()
    refused("nothing to draw: no learning curve: .*; no decision boundary: ", save_plot, path, nine_features, error=DrawingError)
    assert path.read_bytes() == before


def test_hostile_names_are_escaped(tmp_path):
    names = {"a": "$\\frac{1 \n温度", "b": "_" * 1000}
    rows = [({names[name]: value for name, value in x.items()}, f"_$\\label {y}") for x, y in iter_bananas(100)]
    model = learn(preprocessing.StandardScaler() | BSGDClassifier(budget=9, seed=1), rows)
    curve = make_curve()
    curve.metric = "$\\frac$"
    assert save_plot(tmp_path / "picture.png", model, curve) == []
    axes = draw_on_new_axes(model)
    assert axes.get_ylabel() == f"feature {'_' * 37}..."
    assert axes.get_legend().get_texts()[0].get_text() == r"label _\$\label False"


def test_invalid_paths_are_refused(tmp_path, monkeypatch):
    (tmp_path / "folder.png").mkdir()
    for name, reason in (
        ("picture.ckpt", "its suffix is not an image format: end it in .png, .svg or .pdf"),
        ("picture", "its suffix is not an image format"),
        ("folder.png", "is a folder"),
        ("none/picture.png", "there is no folder .*none: make it first"),
    ):
        refused(reason, plots.check_plot_path, tmp_path / name, error=DrawingError)
    monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    with pytest.raises(ModuleNotFoundError, match=r'drawing needs matplotlib: pip install "streamsvm\[plot\]"'):
        plots.check_plot_path(tmp_path / "picture.png")


def test_failures_of_matplotlib_leave_no_file(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("xelatex not found")

    monkeypatch.setattr(Figure, "savefig", fails)
    with pytest.raises(DrawingError, match=r"picture.png: the picture was not written: xelatex not found"):
        save_plot(tmp_path / "picture.png", None, make_curve())
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_matplotlib_is_imported_only_when_drawing():
    code = "import sys, streamsvm.export.plots, streamsvm.cli.understand; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
