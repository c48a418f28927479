"""river's objects are loaded as saved, including pipelines with cached plans and all kinds of transformers."""

import pytest
from river import linear_model, multiclass, preprocessing

from refused import raises
from saved import dumps, loads
from streamsvm import BSGDClassifier
from streamsvm.files.container import ModelFileError


def learned(**options):
    model = preprocessing.StandardScaler(**options) | BSGDClassifier(budget=5)
    for i in range(20):
        model.learn_one({"a": i / 7.0}, i % 2)
    return model


def test_windowed_means_are_loaded_as_objects():
    model = learned(window_size=5)
    assert loads(dumps(model)).predict_one({"a": 1.0}) == model.predict_one({"a": 1.0})


def test_plan_of_a_pipeline_is_rebuilt():
    model = learned()
    data = dumps(model)
    model._plan, model._last_step_cached, model._last_step_params = (1, 2), None, {}
    loaded = loads(dumps(model))
    assert loaded._last_step_cached is loaded["BSGDClassifier"]
    assert dumps(loaded) == dumps(model) == data
    assert loaded.predict_one({"a": 1.0}) == learned().predict_one({"a": 1.0})


def test_text_transformers_and_boolean_parameters():
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


def contain_itself(make_model):
    """Return a wrapper whose last model is the wrapper itself."""
    model = preprocessing.TargetStandardScaler(linear_model.LinearRegression())
    model.regressor = make_model(model)
    return model


@pytest.mark.parametrize(
    "make_model", [lambda model: model, lambda model: preprocessing.StandardScaler() | model], ids=["wrapper", "pipeline"]
)
def test_a_model_that_contains_itself_is_refused(make_model):
    raises("RecursionError", dumps, contain_itself(make_model), error=ModelFileError)  # which loads it again
