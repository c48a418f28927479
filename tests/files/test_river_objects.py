"""Objects of river whose attributes are not such as river makes them are refused when they are read."""

import copy

import pytest
from river import compose, ensemble, linear_model, multiclass, preprocessing

from saved import dumps, loads
from streamsvm import BSGDClassifier
from streamsvm.files.model_file import ModelFileError


def learned(**options):
    model = preprocessing.StandardScaler(**options) | BSGDClassifier(budget=5)
    for i in range(20):
        model.learn_one({"a": i / 7.0}, i % 2)
    return model


CHANGES = {
    "no steps": lambda model: vars(model).pop("steps"),
    "a list of steps": lambda model: vars(model).update(steps=[*model.steps.values()]),
    "a number as a step": lambda model: model.steps.update(StandardScaler=7),
    "a scaler at the end": lambda model: model.steps.update(BSGDClassifier=compose.TransformerUnion()) or model.steps.update(z=1),
    "a learner before the end": lambda model: model.steps.update(StandardScaler=BSGDClassifier()),
    "no means": lambda model: vars(model["StandardScaler"]).pop("means"),
    "means that are a number": lambda model: vars(model["StandardScaler"]).update(means=1.0),
}


def of_many(kind, **how):
    model = kind(multiclass.OneVsRestClassifier(linear_model.LogisticRegression()), **how)
    for i in range(9):
        model.learn_one({"a": float(i)}, i % 3)
    return model


def scaled(kind):
    scaler = kind()
    scaler.learn_one({"a": 1.0})
    return scaler


def bagged(kind):
    return of_many(kind, n_models=2, seed=1)


#: Objects, and changes after which they would fail only when they are used.
LATE = {
    "a largest value that is none": (scaled(preprocessing.MinMaxScaler), lambda model: model.max.update(a=None)),
    "a smallest value that is a list": (scaled(preprocessing.MinMaxScaler), lambda model: model.min.update(a=[1])),
    "nothing for a new feature": (scaled(preprocessing.MaxAbsScaler), lambda model: vars(model).update(abs_max={})),
    "a range that is text": (scaled(preprocessing.RobustScaler), lambda model: model.iqr.update(a="x")),
    "itself within itself": (of_many(multiclass.OneVsRestClassifier), lambda model: model.classifiers.update({0: model})),
    "no watches": (bagged(ensemble.ADWINBaggingClassifier), lambda model: model._drift_detectors.clear()),
    "another watch": (bagged(ensemble.ADWINBaggingClassifier), lambda model: model._drift_detectors.__setitem__(0, model.model)),
    "itself among its models": (bagged(ensemble.BaggingClassifier), lambda model: model.data.append({"a": [model]})),
    "no way to bag": (bagged(ensemble.LeveragingBaggingClassifier), lambda model: vars(model).update(_bagging_fct=1)),
    "a generator that is a number": (bagged(ensemble.BaggingClassifier), lambda model: vars(model).update(_rng=7)),
    "models that are a function": (bagged(ensemble.BaggingClassifier), lambda model: vars(model).update(data=copy.deepcopy)),
}


@pytest.mark.parametrize(("model", "change"), LATE.values(), ids=LATE)
def test_what_would_fail_later_is_refused(model, change):
    loads(dumps(model))
    change(model)
    with pytest.raises(ModelFileError, match="could not be loaded again"):
        dumps(model)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_river_would_not_make_is_refused(change):
    model = learned()
    assert loads(dumps(model)).predict_one({"a": 1.0}) == model.predict_one({"a": 1.0})
    change(model)
    with pytest.raises(ModelFileError, match="could not be loaded again"):
        dumps(model)


def test_the_means_of_a_window_are_objects():
    model = learned(window_size=5)
    assert loads(dumps(model)).predict_one({"a": 1.0}) == model.predict_one({"a": 1.0})
    model["StandardScaler"].means["a"] = 1.0
    with pytest.raises(ModelFileError, match="a StandardScaler has 1.0 among its means"):
        dumps(model)
    model = learned()
    del model["StandardScaler"].window_size
    with pytest.raises(ModelFileError, match="a StandardScaler has no window_size"):
        dumps(model)


def test_the_plan_of_a_pipeline_is_that_of_its_steps():
    model = learned()
    data = dumps(model)
    model._plan, model._last_step_cached, model._last_step_params = (1, 2), None, {}
    found = loads(dumps(model))
    assert found._last_step_cached is found["BSGDClassifier"]
    assert dumps(found) == data
    assert found.predict_one({"a": 1.0}) == learned().predict_one({"a": 1.0})


def test_what_is_learned_may_be_text_and_parameters_may_be_switches():
    imputer = preprocessing.PreviousImputer()
    for x in ({"a": "red", "b": 1.0}, {"a": "green", "b": None}):
        imputer.learn_one(x)
    assert loads(dumps(imputer)).transform_one({"a": None, "b": None}) == {"a": "green", "b": 1.0}
    encoder = preprocessing.OrdinalEncoder(categories={"c": ["u", "v"]})
    assert vars(loads(dumps(encoder)))["values"] == {"c": ["u", "v"]}
    codes = multiclass.OutputCodeClassifier(linear_model.LogisticRegression(), code_size=4, coding_method="random", seed=1)
    for i in range(9):
        codes.learn_one({"a": float(i)}, i % 3)
    assert loads(dumps(codes)).predict_one({"a": 1.0}) == codes.predict_one({"a": 1.0})
