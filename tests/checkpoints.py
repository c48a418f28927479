"""A model that has learned, and its checkpoints."""

from river import datasets, metrics, preprocessing

from streamsvm import BSGDClassifier


def learned(rows=200):
    model = preprocessing.StandardScaler() | BSGDClassifier(budget=20, seed=3)
    for x, y in datasets.Bananas().take(rows):
        model.learn_one(x, y)
    return model


def save(folder, model, rows, **facts):
    return folder.save(model, metrics.Accuracy(), rows=rows, position={"rows": rows}, **facts)
