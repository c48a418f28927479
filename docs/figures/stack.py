"""The ensemble on a stream of three parts: a linear boundary, a circle, and labels in runs."""

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
words = {"linear,": "linear", "linear of": "linear", "additive": "additive", "nearest": "neighbours"}
words |= {"rolling": "forest", "last label": "last label"}
kinds = "linear", "additive", "kernel machines", "neighbours", "forest", "last label"
styles = "--", "-.", ":", (0, (1, 3)), (0, (5, 4)), (0, (6, 1, 1, 1, 1, 1))
model = SVMClassifier(seed=0)
wrong, recent, weights, errors, rows = [], [], [], [], []
for n, (x, label) in enumerate(zip(X, y.tolist(), strict=True)):
    x = dict(enumerate(x))
    wrong.append(100.0 * (model.predict_one(x) != label))
    recent.append(wrong[-1] if n == 0 else recent[-1] + (wrong[-1] - recent[-1]) / min(n + 1, 1000))  # as the experts' errors
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
plt.style.use("seaborn-v0_8-colorblind")
figure, (top, bottom) = plt.subplots(2, 1, figsize=(6, 8), sharex=True, layout="constrained")
top.plot(rows, np.reshape(wrong, (-1, every)).mean(axis=1), color="0.7", lw=1, label=f"Ensemble, last {every} rows")
top.plot(rows, recent[every - 1 :: every], color="k", lw=2, label="Ensemble, fading")
for kind, style, error, weight in zip(kinds, styles, np.transpose(errors), np.transpose(weights), strict=True):
    top.plot(rows, error, ls=style, label=kind.capitalize())
    bottom.plot(rows, weight, ls=style)
top.set(ylabel="Error in % (fading over 1,000 rows)", ylim=(0, 62))
bottom.set(xlabel="Rows", ylabel="Sum of the weights", xlim=(0, 3 * part))
bottom.axhline(0.0, color="0.7", lw=1, zorder=0)
bottom.xaxis.set_major_formatter("{x:,.0f}")
figure.legend(loc="outside upper center", ncols=2)
for start, name in zip((0, part, 2 * part), ("Linear", "Circle", "Runs of labels"), strict=True):
    top.text(start + part / 2, 55, name, ha="center")
    for axis in (top, bottom):
        axis.axvline(start, color="k", lw=1, ls=":")
