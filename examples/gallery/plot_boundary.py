"""A decision boundary over time
=============================

A `BSCAClassifier` with 50 support vectors learns the 5,300 rows of river's Bananas one by one. The pictures show how
it divides the plane between the two labels after 50, 200, 1,000 and all rows.
"""

import matplotlib.pyplot as plt
from river import datasets

from streamsvm import BSCAClassifier
from streamsvm.export.plots import draw_boundary

rows = list(datasets.Bananas())
model = BSCAClassifier(budget=50, seed=0)
figure, axes = plt.subplots(2, 2, figsize=(6.5, 7.2), sharex=True, sharey=True, layout="constrained")
first = 0
for stop, axis in zip((50, 200, 1000, len(rows)), axes.flat, strict=True):
    for x, y in rows[first:stop]:
        model.learn_one(x, y)
    draw_boundary(axis, model, rows[max(0, stop - 300) : stop])
    handles = axis.get_legend().legend_handles
    axis.get_legend().remove()
    axis.set(
        title=f"After {stop:,} rows:\n{model.n_support} support vectors", xlabel="Feature 1", ylabel="Feature 2", ylim=(-3, 3)
    )
    axis.label_outer()
    first = stop
figure.legend(handles, ["Label False", "Label True", "Support vectors"], loc="outside lower center", ncols=3)

# %%
# The black line is the boundary. Circles are the support vectors, and dots the last 300 rows. After 50 rows, the line
# is guesswork. After 1,000 rows, it follows the shape of the two classes, and the other 4,300 rows move it only a
# little.
#
# The model has room for 50 support vectors from the start, so its size in bytes never changes:

print(f"{model.n_learned:,} rows learned, {model.nbytes:,} bytes")
