"""`labels`, probabilities, numpy, ONNX and C list the labels of a classifier in one order, whichever label arrives first."""

import json

import numpy as np
import onnxruntime
import pytest

from streamsvm import BSGDClassifier, SVMClassifier, edge
from streamsvm.batch import CSMOClassifier, batch_adapter
from streamsvm.export.c import write_c
from streamsvm.export.c.text import quote_c_string
from streamsvm.export.convert import make_program
from streamsvm.export.onnx import write_onnx
from streamsvm.learners import KernelRLSClassifier, OnlineLinearSVC

LABELS = [(1, 0), (0, 1), (True, False), (1, -1), ("b", "a"), ("a", "b"), (2, 1), (3, 1, 2), ("z", "a", "m")]


def make_rows(labels):
    rng = np.random.default_rng(0)
    y = [labels[number % len(labels)] for number in range(60)]
    return rng.normal(size=(60, 2)) + 4.0 * np.array([labels.index(label) for label in y])[:, None], y


@pytest.mark.parametrize("labels", LABELS, ids=str)
@pytest.mark.parametrize(
    "model",
    [BSGDClassifier(budget=20), SVMClassifier(effort="low"), OnlineLinearSVC(), KernelRLSClassifier(20)],
    ids=lambda m: type(m).__name__,
)
def test_labels_have_one_order(model, labels, tmp_path):
    if len(labels) > getattr(model, "max_classes", 2):
        return
    model, (X, y) = model.clone(), make_rows(labels)
    model.learn_many(X, y)
    x, program = dict(enumerate(X[0].tolist())), make_program(model)
    order = model.labels
    assert sorted(order) == sorted(labels)
    assert list(model.predict_proba_one(x)) == order
    assert model.predict_proba_many(X[:1])[0].tolist() == list(model.predict_proba_one(x).values())
    predictor = edge.Predictor(program)
    assert predictor.labels == list(predictor.predict_proba_one(x)) == order
    np.testing.assert_allclose(predictor.predict_proba_many(X), model.predict_proba_many(X), atol=1e-4)
    write_onnx(program, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    assert json.loads(session.get_modelmeta().custom_metadata_map["labels"]) == order
    probabilities = session.run(["probabilities"], {"X": X.astype(np.float32)})[0]
    np.testing.assert_allclose(probabilities, model.predict_proba_many(X), atol=1e-4)
    source = write_c(program, tmp_path).source.read_text()
    assert f"model_labels[{len(order)}] = {{{', '.join(map(quote_c_string, order))}}};" in source


@pytest.mark.parametrize("labels", [(1, 0), ("b", "a"), (3, 1, 2)], ids=str)
def test_labels_of_an_adapter_are_in_the_order_of_its_probabilities(labels):
    model, (X, y) = batch_adapter(CSMOClassifier(), window=50, refit_every=50, background=False), make_rows(labels)
    for position, (x, label) in enumerate(zip(X.tolist(), y, strict=True)):
        model.learn_one(dict(enumerate(x)), label)
        if position in (10, 59):  # before and after the first fit
            assert model.labels == list(model.predict_proba_one(dict(enumerate(x))))
