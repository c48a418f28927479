"""Anomaly detection
=================

Most rows of this stream lie on a ring or in its centre, and one in fifty comes from anywhere. A `OneClassBSGD` looks
for those without any labels. It learns where most rows are, with 60 support vectors at most, and scores each row before it
learns it.
"""

import math
import random

import matplotlib.pyplot as plt
import numpy as np
from river import anomaly, metrics, preprocessing

from streamsvm import OneClassBSGD

rng = random.Random(0)


def make_row():
    """Return a random row, and whether it is an anomaly."""
    if rng.random() < 0.02:
        return {"a": rng.uniform(-4, 4), "b": rng.uniform(-4, 4)}, True
    angle, radius = rng.uniform(0, 2 * math.pi), rng.gauss(2.5 if rng.random() < 0.8 else 0.0, 0.25)
    return {"a": radius * math.cos(angle), "b": radius * math.sin(angle)}, False


rows = [make_row() for _ in range(5000)]
models = {
    "OneClassBSGD": OneClassBSGD(budget=60, nu=0.05, gamma=2.0),
    "river's HalfSpaceTrees": preprocessing.MinMaxScaler() | anomaly.HalfSpaceTrees(seed=0),
}
scores = {}
for name, model in models.items():
    auc = metrics.ROCAUC()
    scores[name] = []
    for i, (x, strange) in enumerate(rows):
        scores[name].append(model.score_one(x))
        if i >= 1000:
            auc.update(strange, scores[name][-1])
        model.learn_one(x)
    print(f"{name}: area under the ROC curve {auc.get():.3f}")

model = models["OneClassBSGD"]
side = np.linspace(-4, 4, 81)
grid = [[model.decision_function_one({"a": a, "b": b}) for a in side] for b in side]
plt.style.use("seaborn-v0_8-colorblind")
figure, (map_axis, score_axis) = plt.subplots(2, 1, figsize=(6, 9.5), height_ratios=(5, 3), layout="constrained")
map_axis.contourf(side, side, grid, levels=20, cmap="Blues")
map_axis.contour(side, side, grid, levels=[0.0], colors="black", linewidths=2)
for strange, colour, marker, size, label in (False, "white", "o", 8, "Usual"), (True, "C2", "^", 50, "From anywhere"):
    points = [(x["a"], x["b"]) for x, is_anomaly in rows[-2000:] if is_anomaly == strange]
    options = {"color": colour, "marker": marker, "s": size, "edgecolors": "black" if strange else "grey", "linewidths": 0.5}
    map_axis.scatter(*zip(*points, strict=True), label=label, **options)
map_axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, facecolor="lightsteelblue")
map_axis.set(title="The last 2,000 rows", aspect="equal", xlabel="a", ylabel="b")
for strange, colour, label in (False, "C5", "Usual"), (True, "C2", "From anywhere"):
    group = [score for score, (_, kind) in zip(scores["OneClassBSGD"][1000:], rows[1000:], strict=True) if kind == strange]
    counts, edges = np.histogram(group, bins=np.linspace(0, 1, 41), weights=np.full(len(group), 100.0 / len(group)))
    score_axis.stairs(counts, edges, label=label, linewidth=2, color=colour, fill=not strange)
score_axis.legend(loc="upper left")
score_axis.set(title="Scores of the rows", xlabel="Score (1 is most unlike the others)", ylabel="Share of these rows in %")

# %%
# **Above:** the darker the blue, the more usual the rows. The black lines are the threshold that the model has learned.
# About 5 percent of the rows lie outside, as ``nu`` asks, and so does the hole of the ring. The triangles inside came
# from anywhere, but landed by chance in a usual place. Nothing could find those.
#
# **Below:** the scores of usual rows spread around 0.5, while most rows from anywhere score near 1.
