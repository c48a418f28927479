"""A boundary that follows a drift
===============================

The label of a row says on which side of a wave it lies. The wave moves to the right with every row, by nearly half a
period over the 3,600 rows. A `BSGDClassifier` with 40 support vectors predicts each row, then learns it, and its
boundary follows the wave.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import FuncAnimation

from streamsvm import BSGDClassifier

FRAMES, ROWS = 30, 120  # frames, and rows between two frames


def compute_wave(x, row):
    """Return the height of the wave at x after ``row`` rows."""
    return 0.5 + 0.28 * np.sin(2.0 * np.pi * (x - row / 8000.0))


model = BSGDClassifier(budget=40, gamma=10.0, learning_rate="constant", scaling=None, seed=0)
points = np.random.default_rng(0).random((FRAMES * ROWS, 2))
side = np.linspace(0.0, 1.0, 60)
grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
labels, hits, decisions, vectors = [], [], [], []
for row, point in enumerate(points):
    x = dict(enumerate(point.tolist()))
    labels.append(bool(point[1] > compute_wave(point[0], row)))
    hits.append(model.predict_one(x) == labels[-1])
    model.learn_one(x, labels[-1])
    if (row + 1) % ROWS == 0:
        decisions.append(model.decision_function_many(grid).reshape(60, 60))
        vectors.append(model.support_vectors)
accuracy = 100.0 * np.convolve(hits, np.full(200, 1 / 200), "valid")[:: ROWS // 4]
at_row = np.arange(200, len(hits) + 1)[:: ROWS // 4]

plt.rcParams["animation.frame_format"] = "jpeg"  # smaller than png
figure, (plane, score) = plt.subplots(1, 2, figsize=(7, 3.6))
figure.subplots_adjust(left=0.06, right=0.95, bottom=0.14, top=0.9, wspace=0.2)
labels = np.array(labels)


def draw_frame(frame):
    """Draw the decisions of the model after the rows of a frame."""
    stop = (frame + 1) * ROWS
    plane.clear()
    plane.contourf(side, side, np.clip(decisions[frame], -1, 1), levels=np.linspace(-1, 1, 11), cmap="RdBu", alpha=0.6)
    plane.contour(side, side, decisions[frame], levels=[0.0], colors="black", linewidths=2)
    plane.plot(side, compute_wave(side, stop), color="gold", linewidth=4, zorder=1)
    last = np.arange(max(0, stop - 200), stop)
    plane.scatter(*points[last[labels[last]]].T, s=8, color="#2166ac")
    plane.scatter(*points[last[~labels[last]]].T, s=14, color="#b2182b", marker="x", linewidths=1)
    plane.scatter(*vectors[frame].T, s=40, facecolors="none", edgecolors="black")
    plane.set(xlim=(0, 1), ylim=(0, 1), title=f"{stop:,} rows, {len(vectors[frame])} support vectors")
    score.clear()
    shown = at_row <= stop
    score.plot(at_row[shown], accuracy[shown])
    score.set(xlim=(0, len(points)), ylim=(50, 100), xlabel="Rows", title="Accuracy in %, last 200 rows")
    score.xaxis.set_major_formatter("{x:,.0f}")
    score.set_xticks(range(0, len(points) + 1, 1200))
    score.grid(alpha=0.3)


animation = FuncAnimation(figure, draw_frame, frames=FRAMES, interval=200)

# %%
# **Left:** the yellow line is the current wave, and the black line the boundary that the model has learned. Circles
# are the support vectors. Dots (True) and crosses (False) are the last 200 rows. The black line stays close to the
# yellow one, but a little behind it, because the model learned it from earlier rows. There are never more than 40
# support vectors: new ones push out those of earlier waves.
#
# **Right:** the accuracy rises at first, and then stays level.
