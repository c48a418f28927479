"""A budgeted kernel SVM in a river pipeline, beside a linear model: what the kernel buys and what it costs."""

import time

from river import datasets, evaluate, linear_model, metrics, preprocessing

from streamsvm import BSGDClassifier

MODELS = {
    "logistic regression": linear_model.LogisticRegression(),
    "BSGD, 50 support vectors": BSGDClassifier(budget=50),
    "BSGD, 200 support vectors": BSGDClassifier(budget=200),
}


def main() -> None:
    for name, learner in MODELS.items():
        model = preprocessing.StandardScaler() | learner
        began = time.perf_counter()
        metric = evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy() + metrics.LogLoss())
        print(f"{name:26} {metric}  {1e6 * (time.perf_counter() - began) / 5300:.0f} us a row")


if __name__ == "__main__":
    main()
