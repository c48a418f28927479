"""The margin of a row before and after it is learned: by gradient descent, and by dual ascent."""

import matplotlib.pyplot as plt
import numpy as np
from river import datasets

from streamsvm import BSCAClassifier, BSGDClassifier

C, seen, rest = 1.0, 1500, 300
rows = list(datasets.Bananas())[: seen + rest]
X, y = np.array([list(x.values()) for x, _ in rows]), np.array([1.0 if label else -1.0 for _, label in rows])
models = {
    "BSGD": BSGDClassifier(100, learning_rate="pegasos", l2=1.0 / (5300 * C), averaging=0, gamma=1.0, scaling=None),
    "BSCA": BSCAClassifier(100, C=C, relaxation=1.0, reprocess=0, tol=0.0, averaging=0, gamma=1.0, scaling=None),
}
lift = 5300 * C / (seen + rest / 2)  # 1 / (λ t) in the middle of these rows
inside = np.linspace(-6.0, 1.0)  # margins
expected = {
    "BSGD": (inside + lift, f"Raised by 1 / (λ t), about {lift:.1f}"),
    "BSCA": (np.minimum(inside + C, 1.0), "Raised to 1, but by C = 1 at most"),
}
plt.style.use("seaborn-v0_8-colorblind")
figure, axes = plt.subplots(2, 1, figsize=(6, 8), sharex=True, sharey=True, layout="constrained")
for axis, (name, model) in zip(axes, models.items(), strict=True):
    model.learn_many(X[:seen], y[:seen] > 0)
    before, after = [], []
    for row, label in zip(X[seen:], y[seen:], strict=True):
        before.append(label * model.decision_function_many(row[None])[0])
        model.learn_one(dict(enumerate(row)), label > 0)
        after.append(label * model.decision_function_many(row[None])[0])
    before, after = np.array(before), np.array(after)
    axis.plot([-6, 4], [-6, 4], color="0.6", lw=1, label="Unchanged")
    axis.plot(inside, expected[name][0], "k--", lw=1, label=expected[name][1])
    axis.scatter(before[before < 4], after[before < 4], s=14, color="C0")
    axis.set(title=name, ylabel="Margin after", xlim=(-6, 4.2), ylim=(-6, 5))
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right")
axes[1].set_xlabel("Margin before the row is learned")
