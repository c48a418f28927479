"""Adds search words to sections: the search of the site ranks a section first for each of its words."""

from __future__ import annotations

from collections import Counter
from typing import Any

from docutils import nodes
from sphinx.addnodes import index
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import SphinxError
from sphinx.transforms import SphinxTransform

#: Search words by page and section. A query matches an entry if it contains at least half of its letters, in order.
SEARCH_WORDS = {
    "anomalies": "anomaly detection, outliers, novelty",
    "drift": "drift, concept drift, drift detection",
    "edge": "microcontroller, arduino, embedded, browser, javascript, onnx, numpy alone",
    "evaluate": "evaluate, evaluation, cross-validation, cross validation, how good",
    "evaluate#predict-each-row-before-it-is-learned": "prequential, progressive validation, learning curve",
    "evaluate#several-metrics-and-what-guessing-gives": "metrics, accuracy, baseline, log loss",
    "evaluate#hold-rows-out": "holdout, train test split, test set",
    "evaluate#rows-that-are-sorted-by-label": "shuffle, sorted labels",
    "evaluate#compare-two-models": "compare models, significance, mcnemar",
    "exact-fits": "svc, svr, libsvm",
    "exact-fits#get-probabilities": "predict_proba, platt scaling",
    "imbalance": "imbalance, imbalanced classes, class imbalance, rare class, fraud",
    "imbalance#tune-the-threshold": "threshold, decision threshold, precision, recall, f1",
    "imbalance#weight-the-rows": "class weight, class_weight",
    "imbalance#use-the-probability": "probability, probabilities, calibration",
    "regression": "regression, predict numbers",
    "scikit-learn": "scikit-learn, sklearn, pipeline, cross_val_score",
    "scikit-learn#search-for-parameters": "hyperparameters, grid search, gridsearchcv, tuning",
    "serve": "serve, http, rest api, api server, deploy, web service",
    "tables": "csv, parquet, pandas, polars, dataframe, categorical",
    "tables#how-a-cell-is-parsed": "missing values, nan, null",
    "track": "mlflow, track, experiment tracking, model registry",
    "tutorial": "tutorial, quickstart, getting started, first steps",
    "tutorial#what-next": "notebook, jupyter",
    "tutorial#save-and-load": "save, load, save model, load model, pickle",
    "understand": "understand, interpret",
    "understand#how-well": "confusion matrix, classification report, how well",
    "understand#which-columns-matter": "which features matter, which columns matter, feature importance, importance",
    "understand#which-rows-are-like-it": "examples, similar rows, nearest neighbors, prototypes",
    "understand#why-this-decision": "why, explain, explanation, shap, shapley",
}


class AddWords(SphinxTransform):
    """Adds index entries for the words of a page, at their sections."""

    default_priority = 400  # before the index domain reads the page

    def apply(self, **kwargs: Any) -> None:
        """Add the entries; raise SphinxError if a section does not exist."""
        page = self.env.docname
        sections = {name: section for section in self.document.findall(nodes.section) for name in section["ids"]}
        for place, words in SEARCH_WORDS.items():
            name, _, section = place.partition("#")
            if name != page:
                continue
            target = sections.get(section) if section else next(iter(self.document.findall(nodes.section)), None)
            if target is None:
                raise SphinxError(f"search_words.py: {page} has no section {section}")
            identifier = target["ids"][0]
            entries = [("single", word.strip(), identifier, "main", None) for word in words.split(",")]
            target.insert(1, index("", entries=entries))  # after the title


def check_words(app: Sphinx, env: BuildEnvironment) -> None:
    """Raise SphinxError if a page does not exist, or if two sections have the same word."""
    if unknown := {place.partition("#")[0] for place in SEARCH_WORDS} - env.found_docs:
        raise SphinxError(f"search_words.py: there is no page {', '.join(sorted(unknown))}")
    counts = Counter(word.strip() for words in SEARCH_WORDS.values() for word in words.split(","))
    if repeated := [word for word, count in counts.items() if count > 1]:
        raise SphinxError(f"search_words.py: {', '.join(repeated)}: two sections have the same word")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the transform and the check."""
    app.add_transform(AddWords)
    app.connect("env-check-consistency", check_words)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
