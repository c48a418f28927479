"""Compare accuracy and time of budgeted kernel SVMs and a linear model in river pipelines."""

import time

from river import datasets, evaluate, linear_model, metrics, preprocessing

from streamsvm import BSGDClassifier

MODELS = {
    "logistic regression": linear_model.LogisticRegression(),
    "BSGD, 50 support vectors": BSGDClassifier(budget=50),
    "BSGD, 200 support vectors": BSGDClassifier(budget=200),
}


def main() -> None:
    """Print the prequential accuracy, log loss and time of each model."""
    for name, learner in MODELS.items():
        model = preprocessing.StandardScaler() | learner
        start = time.perf_counter()
        metric = evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy() + metrics.LogLoss())
        print(f"{name:26} {metric}  {1e6 * (time.perf_counter() - start) / 5300:.0f} us a row")


if __name__ == "__main__":
    main()
