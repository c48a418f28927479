"""The leaves of a cluster tree with their skeletons, and the matrix that they make."""

import matplotlib.pyplot as plt
import numpy as np
from river import datasets

from streamsvm.hss import HSSMatrix

X = np.array([list(x.values()) for x, _ in datasets.Bananas()])[:2048]
K = HSSMatrix.compress(X, gamma=1.0, rel_tol=0.05, leaf_size=128)
cuts, matrix = K.compositional()
rows = X[cuts.order]
figure, (left, right) = plt.subplots(2, 1, figsize=(6, 10), layout="constrained", height_ratios=(4, 5))
for node in cuts.leaves:
    leaf = rows[cuts.begin[node] : cuts.end[node]]
    skeleton = rows[matrix.skeletons[matrix.places[node] : matrix.places[node] + matrix.ranks[node]]]
    [dots] = left.plot(leaf[:, 0], leaf[:, 1], ".", ms=4, alpha=0.5)
    left.plot(skeleton[:, 0], skeleton[:, 1], "o", ms=4, color=dots.get_color(), mec="k", mew=0.6)
left.set(title="16 leaves, and the rows of their skeletons", xticks=[], yticks=[], aspect="equal")

depths = np.zeros(len(cuts.begin), int)
for node, child in enumerate(cuts.right):
    if child < 0:
        begin, end = cuts.begin[node], cuts.end[node]
        right.fill([begin, end, end, begin], [begin, begin, end, end], color="C3", alpha=0.8)
        continue
    depths[[node + 1, child]] = depths[node] + 1
    middle, end = cuts.begin[child], cuts.end[node]
    for x, y, one, other in ((middle, cuts.begin[node], node + 1, child), (cuts.begin[node], middle, child, node + 1)):
        width, height = (end - middle, middle - cuts.begin[node]) if x == middle else (middle - cuts.begin[node], end - middle)
        right.add_patch(plt.Rectangle((x, y), width, height, fc=plt.get_cmap("Blues")(0.15 + 0.12 * depths[node]), ec="w"))
        if depths[node] < 3:
            ranks = f"{matrix.ranks[one]} x {matrix.ranks[other]}"
            right.text(x + width / 2, y + height / 2, ranks, ha="center", va="center", fontsize=11 - 2 * depths[node])
right.set(
    title="its blocks: whole, or between skeletons", xlim=(0, len(X)), ylim=(len(X), 0), aspect="equal", xticks=[], yticks=[]
)
