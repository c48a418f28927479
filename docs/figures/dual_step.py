"""What a step does to the margin of the row that is learned: by gradient descent, and in the dual."""

import matplotlib.pyplot as plt
import numpy as np
from river import datasets

from streamsvm import BSCAClassifier, BSGDClassifier

C, seen = 1.0, 1500
rows = list(datasets.Bananas())[: seen + 300]
X, y = np.array([list(x.values()) for x, _ in rows]), np.array([1.0 if label else -1.0 for _, label in rows])
models = {
    "BSGD": BSGDClassifier(100, learning_rate="pegasos", l2=1.0 / (5300 * C), averaging=0, gamma=1.0, scaling=None),
    "BSCA": BSCAClassifier(100, C=C, relaxation=1.0, reprocess=0, tol=0.0, averaging=0, gamma=1.0, scaling=None),
}
figure, axes = plt.subplots(1, 2, figsize=(7, 3.9), sharex=True, sharey=True, layout="constrained")
for axis, (name, model) in zip(axes, models.items(), strict=True):
    model.learn_many(X[:seen], y[:seen] > 0)
    before, after = [], []
    for row, label in zip(X[seen:], y[seen:], strict=True):
        before.append(label * model.decision_function_many(row[None])[0])
        model.learn_one(dict(enumerate(row)), label > 0)
        after.append(label * model.decision_function_many(row[None])[0])
    axis.plot([-2, 3], [-2, 3], color="0.7", lw=1)
    axis.axhline(1.0, color="0.7", lw=1, ls="--")
    axis.scatter(before, after, s=10, color="C0" if name == "BSCA" else "C1")
    axis.set(title=name, xlabel="margin before the row is learned", xlim=(-2, 3), ylim=(-2, 5))
axes[0].set_ylabel("margin of the same row after")
