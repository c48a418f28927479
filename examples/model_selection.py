"""Choose C and gamma of a kernel machine by scikit-learn's grid search over a pipeline."""

import time

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from streamsvm.batch import CSMOClassifier

GRID = {"svm__C": [1.0, 10.0, 100.0], "svm__gamma": [0.0003, 0.001, 0.003, 0.01]}


def main() -> None:
    """Print the accuracies of the grid, and the accuracy of the best model on test rows."""
    digits = load_digits()
    X, X_test, y, y_test = train_test_split(digits.data, digits.target, stratify=digits.target, random_state=0)
    model = Pipeline([("scale", StandardScaler()), ("svm", CSMOClassifier())])
    search = GridSearchCV(model, GRID, cv=3)
    start = time.perf_counter()
    search.fit(X, y)
    seconds = time.perf_counter() - start

    scores = 100.0 * search.cv_results_["mean_test_score"].reshape(len(GRID["svm__C"]), -1)
    print("Accuracy of cross-validation, %: a row for each C, a column for each gamma")
    print(f"{'':8}" + "".join(f"{gamma:8g}" for gamma in GRID["svm__gamma"]))
    for C, row in zip(GRID["svm__C"], scores, strict=True):
        print(f"{C:8g}" + "".join(f"{score:8.1f}" for score in row))

    svm = search.best_estimator_["svm"]
    print(f"Chosen: C = {svm.C:g}, gamma = {svm.gamma:g}")
    print(f"Fits: {scores.size * search.n_splits_ + 1} in {seconds:.1f} s, including compilation in the first run")
    print(f"The model: {len(svm.support_)} of {len(y)} rows are support vectors, {np.sum(svm.n_iter_)} steps")
    print(f"Accuracy on {len(y_test)} rows set aside: {100.0 * search.score(X_test, y_test):.1f} %")


if __name__ == "__main__":
    main()
