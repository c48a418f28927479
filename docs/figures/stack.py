"""The committee on a stream of three parts: a linear boundary, a circle, labels that come in runs."""

import matplotlib.pyplot as plt
import numpy as np

from streamsvm import SVMClassifier

part, every = 3000, 100
rng = np.random.default_rng(0)
X = rng.uniform(-1.0, 1.0, size=(3 * part, 4))
y = np.concatenate([
    X[:part].sum(axis=1) > 0.0,
    np.square(X[part : 2 * part, :2]).sum(axis=1) < 0.64,
    np.arange(part) // 40 % 2 == 0,
])  # fmt: skip
y ^= rng.random(len(y)) < 0.05
words = {"linear,": "linear", "linear of": "linear", "additive": "additive", "last label": "last label"}
kinds = "linear", "additive", "kernel machines", "last label"
model = SVMClassifier(seed=0)
right, weights, errors, rows = [], [], [], []
for n, (x, label) in enumerate(zip(X, y.tolist(), strict=True)):
    x = dict(enumerate(x))
    right.append(model.predict_one(x) == label)
    model.learn_one(x, label)
    if (n + 1) % every == 0:
        total, least = dict.fromkeys(kinds, 0.0), dict.fromkeys(kinds, 1.0)
        for expert in model.experts:
            kind = next((kind for word, kind in words.items() if expert.name.startswith(word)), "kernel machines")
            total[kind] += expert.weight
            least[kind] = min(least[kind], expert.error)
        weights.append(list(total.values()))
        errors.append([100.0 * error for error in least.values()])
        rows.append(n + 1)
figure, (top, bottom) = plt.subplots(2, 1, figsize=(6, 7), sharex=True, layout="constrained")
wrong = 100.0 - 100.0 * np.reshape(right, (-1, every)).mean(axis=1)
top.plot(rows, wrong, color="k", lw=1, label="committee")
for kind, error, weight in zip(kinds, np.transpose(errors), np.transpose(weights), strict=True):
    top.plot(rows, error, label=kind)
    bottom.plot(rows, weight)
top.set(ylabel="errors in %", ylim=(0, 62))
bottom.set(xlabel="rows", ylabel="sum of the weights", xlim=(0, 3 * part))
top.legend(fontsize=9, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
for begin, name in zip((0, part, 2 * part), ("linear", "a circle", "runs of labels"), strict=True):
    top.text(begin + part / 2, 55, name, ha="center")
    for axis in (top, bottom):
        axis.axvline(begin, color="k", lw=1, ls=":")
