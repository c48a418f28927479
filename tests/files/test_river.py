"""Every estimator, statistic and metric of river that can be found is saved, or refused as expected."""

import copy
import importlib
import inspect
import math
import pkgutil
import random
import warnings

import pytest
import river
from river import (
    anomaly,
    base,
    compose,
    drift,
    feature_extraction,
    feature_selection,
    forest,
    imblearn,
    linear_model,
    metrics,
    misc,
    model_selection,
    naive_bayes,
    neighbors,
    optim,
    preprocessing,
    stats,
    time_series,
    utils,
)

from saved import dumps, loads
from streamsvm.files.container import ModelFileError

#: What no file holds, and why. Anything else that river brings must be one that can be saved.
REFUSED = {
    "HoltWinters": "a deque with arithmetic",
    "LDA": "makes arrays by functions of numpy",
    "SDFT": "complex numbers of numpy",
    "OutputCodeClassifier": "an iterator over codes",
    "SKL2RiverClassifier": "scikit-learn's own",
    "SKL2RiverRegressor": "scikit-learn's own",
}
#: Only some of their parameters bring what no file holds.
SOME = {"OutputCodeClassifier"}


def half_spaces():
    return anomaly.HalfSpaceTrees(n_trees=2, height=4, seed=1)


#: Those that say nothing of their parameters, made as users make them.
MADE = {
    # With few, small trees: with the parameters of river's own tests, they have tens of thousands of nodes.
    "anomaly.filter.ThresholdFilter": lambda: anomaly.ThresholdFilter(half_spaces(), threshold=0.5),
    "anomaly.hst.HalfSpaceTrees": half_spaces,
    "compose.func.FuncTransformer": lambda: compose.FuncTransformer(copy.deepcopy),
    "compose.grouper.Grouper": lambda: compose.Grouper(preprocessing.StandardScaler(), by="c"),
    "compose.renamer.Prefixer": lambda: compose.Prefixer("p_"),
    "compose.renamer.Renamer": lambda: compose.Renamer({"a": "A"}),
    "compose.renamer.Suffixer": lambda: compose.Suffixer("_s"),
    "compose.target_transform.TargetTransformRegressor": lambda: compose.TargetTransformRegressor(
        linear_model.LinearRegression(), func=math.expm1, inverse_func=math.log1p
    ),
    "feature_extraction.agg.Agg": lambda: feature_extraction.Agg(on="a", by="c", how=stats.Mean()),
    "feature_extraction.kernel_approx.RandomTreesEmbedding": lambda: feature_extraction.RandomTreesEmbedding(2, 4, seed=1),
    "forest.aggregated_mondrian_forest.AMFRegressor": lambda: forest.AMFRegressor(n_estimators=2, seed=1),
    "feature_extraction.agg.TargetAgg": lambda: feature_extraction.TargetAgg(by="c", how=utils.Rolling(stats.Mean(), 5)),
    "feature_selection.random.PoissonInclusion": lambda: feature_selection.PoissonInclusion(p=0.5, seed=1),
    "imblearn.random.RandomOverSampler": lambda: imblearn.RandomOverSampler(naive_bayes.GaussianNB(), SHARES, seed=1),
    "imblearn.random.RandomSampler": lambda: imblearn.RandomSampler(naive_bayes.GaussianNB(), SHARES, seed=1),
    "imblearn.random.RandomUnderSampler": lambda: imblearn.RandomUnderSampler(linear_model.LogisticRegression(), SHARES, seed=1),
    "metrics.base.Metrics": lambda: metrics.Accuracy() + metrics.F1(),
    "metrics.fbeta.FBeta": lambda: metrics.FBeta(beta=2.0),
    "metrics.fbeta.MacroFBeta": lambda: metrics.MacroFBeta(beta=2.0),
    "metrics.fbeta.MicroFBeta": lambda: metrics.MicroFBeta(beta=2.0),
    "metrics.fbeta.MultiFBeta": lambda: metrics.MultiFBeta(betas={True: 1.0, False: 2.0}, weights=None),
    "metrics.fbeta.WeightedFBeta": lambda: metrics.WeightedFBeta(beta=2.0),
    "metrics.multioutput.macro.MacroAverage": lambda: metrics.multioutput.MacroAverage(metrics.MAE()),
    "metrics.multioutput.micro.MicroAverage": lambda: metrics.multioutput.MicroAverage(metrics.MAE()),
    "metrics.multioutput.per_output.PerOutput": lambda: metrics.multioutput.PerOutput(metrics.MAE()),
    "metrics.multioutput.sample_average.SampleAverage": lambda: metrics.multioutput.SampleAverage(metrics.Jaccard()),
    "misc.sdft.SDFT": lambda: misc.SDFT(window_size=4),
    "misc.skyline.Skyline": lambda: misc.Skyline(maximize=["a"], minimize=["b"]),
    "model_selection.sh.SuccessiveHalvingClassifier": lambda: model_selection.SuccessiveHalvingClassifier(
        [naive_bayes.GaussianNB(), linear_model.LogisticRegression()], metrics.Accuracy(), budget=100
    ),
    "optim.base.Optimizer": lambda: optim.base.Optimizer(0.1),
    "optim.initializers.Constant": lambda: optim.initializers.Constant(1.0),
    "optim.schedulers.Constant": lambda: optim.schedulers.Constant(0.1),
    "optim.schedulers.InverseScaling": lambda: optim.schedulers.InverseScaling(0.1),
    "optim.schedulers.Optimal": lambda: optim.schedulers.Optimal(optim.losses.Log()),
    "preprocessing.impute.Constant": lambda: preprocessing.impute.Constant(1.0),
    "preprocessing.scale_target.TargetMinMaxScaler": lambda: preprocessing.TargetMinMaxScaler(linear_model.LinearRegression()),
    "preprocessing.scale_target.TargetStandardScaler": lambda: preprocessing.TargetStandardScaler(
        linear_model.LinearRegression()
    ),
    "stats.auto_corr.AutoCorr": lambda: stats.AutoCorr(lag=2),
    "stats.base.Link": lambda: stats.Shift(1) | stats.Mean(),
    "stats.iqr.RollingIQR": lambda: stats.RollingIQR(window_size=5),
    "stats.maximum.RollingAbsMax": lambda: stats.RollingAbsMax(window_size=5),
    "stats.maximum.RollingMax": lambda: stats.RollingMax(window_size=5),
    "stats.mean.BayesianMean": lambda: stats.BayesianMean(prior=1.0, prior_weight=2.0),
    "stats.minimum.RollingMin": lambda: stats.RollingMin(window_size=5),
    "stats.mode.RollingMode": lambda: stats.RollingMode(window_size=5),
    "stats.ptp.RollingPeakToPeak": lambda: stats.RollingPeakToPeak(window_size=5),
    "stats.quantile.RollingQuantile": lambda: stats.RollingQuantile(q=0.5, window_size=5),
    "time_series.metrics.HorizonAggMetric": lambda: time_series.HorizonAggMetric(metrics.MAE(), max),
    "time_series.metrics.HorizonMetric": lambda: time_series.HorizonMetric(metrics.MAE()),
}
SHARES = {False: 0.5, True: 0.5}
#: Packages of those that take long to learn: the thorough list has them.
SLOW = {"anomaly", "ensemble", "forest", "tree"}
#: Modules with parts that other estimators make: they are saved with those.
PARTS = ("cluster.odac.", "forest.online_extra_trees.", "misc.zstd", "rules.amrules.", "tree.")

RNG = random.Random(1)
ROWS = [({"a": RNG.gauss(0, 1), "b": RNG.gauss(0, 1), "c": float(i % 3)}, i % 3 == 0) for i in range(300)]


def discovered():
    classes = set()
    for module in pkgutil.walk_packages(river.__path__, "river."):
        try:
            members = inspect.getmembers(importlib.import_module(module.name), inspect.isclass)
        except ImportError:  # an optional package is missing
            continue
        classes |= {kind for _, kind in members if kind.__module__.startswith("river.") and issubclass(kind, base.Base)}
    return sorted((kind for kind in classes if not inspect.isabstract(kind)), key=lambda kind: (kind.__module__, kind.__name__))


def name_of(kind):
    return f"{kind.__module__.removeprefix('river.')}.{kind.__name__}"


def instances(kind):
    if (make := MADE.get(name_of(kind))) is not None:
        yield make()
        return
    try:
        parameters = list(kind._unit_test_params())
    except (TypeError, NotImplementedError):
        return
    for chosen in parameters:
        try:
            yield kind(**chosen)
        except (TypeError, ValueError, RuntimeError):  # a class that only others can create, or one for a later Python
            continue


def learned(model):
    """Return the model after it has learned some rows, if it accepts them."""
    slow = type(model).__module__.split(".")[1] in SLOW - {"tree"}  # these have many equal parts
    for i, (x, y) in enumerate(ROWS[: 60 if slow else 300]):
        try:
            if isinstance(model, base.Classifier):
                model.predict_one(x)
                model.learn_one(x, y)
            elif isinstance(model, base.Regressor):
                model.predict_one(x)
                model.learn_one(x, x["a"] + y)
            elif hasattr(model, "update") and i % 2:
                model.update(y, x["a"] > 0)
            elif hasattr(model, "update"):
                model.update(x["a"])
            elif getattr(model, "_supervised", False):
                model.learn_one(x, y)
            else:
                model.learn_one(x)
        except Exception:  # noqa: BLE001 - of one that takes other rows
            continue
    return model


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.thorough] * (kind.__module__.split(".")[1] in SLOW)) for kind in discovered()],
    ids=name_of,
)
@pytest.mark.filterwarnings("ignore")
def test_river_objects_can_be_saved(kind):
    models = list(instances(kind))
    assert models or name_of(kind).startswith(PARTS), "how is it made? Say it in MADE"
    for model in models:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            learned(model)
        try:
            data = dumps(model)
        except ModelFileError:
            assert kind.__name__ in REFUSED
            continue
        assert kind.__name__ not in REFUSED or kind.__name__ in SOME, f"{kind.__name__} can be saved now: take it off the list"
        loaded = loads(data)
        assert type(loaded) is kind
        assert dumps(loaded) == data


def test_parameters_change_objects():
    classifier = drift.DriftRetrainingClassifier(naive_bayes.GaussianNB(), drift.binary.DDM(), train_in_background=False)
    for model in (classifier, neighbors.KNNClassifier(cleanup_every=None)):
        assert type(loads(dumps(model))) is type(model)
