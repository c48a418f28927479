"""The leaves of a cluster tree with their skeletons, and the matrix that they make."""

import matplotlib.pyplot as plt
import numpy as np
from river import datasets
from scipy.spatial import ConvexHull

from streamsvm.batch.hss import HSSMatrix

X = np.array([list(x.values()) for x, _ in datasets.Bananas()])[:2048]
K = HSSMatrix.compress(X, gamma=1.0, rel_tol=0.05, leaf_size=256)
cuts, matrix = K.compositional()
rows = X[cuts.order]
plt.style.use("seaborn-v0_8-colorblind")
figure, (top, bottom) = plt.subplots(2, 1, figsize=(6, 10), layout="constrained", height_ratios=(4, 5))
box = {"boxstyle": "round,pad=0.2", "fc": "w", "lw": 0}
for number, node in enumerate(cuts.leaves, 1):
    leaf = rows[cuts.begin[node] : cuts.end[node]]
    skeleton = rows[matrix.skeletons[matrix.places[node] : matrix.places[node] + matrix.ranks[node]]]
    color = f"C{number % 4}"
    top.fill(*leaf[ConvexHull(leaf).vertices].T, fc=color, ec="0.3", alpha=0.2)
    top.plot(leaf[:, 0], leaf[:, 1], ".", ms=3, color=color, alpha=0.6)
    top.plot(skeleton[:, 0], skeleton[:, 1], "o", ms=4, color=color, mec="k", mew=0.8)
    top.text(*leaf.mean(axis=0), number, weight="bold", ha="center", va="center", bbox=box)
top.set(title="Eight leaves, and the rows of their skeletons", xticks=[], yticks=[], aspect="equal")

depths, number = np.zeros(len(cuts.begin), int), 0
for node, child in enumerate(cuts.right):
    begin, end = cuts.begin[node], cuts.end[node]
    if child < 0:
        number += 1
        bottom.fill([begin, end, end, begin], [begin, begin, end, end], fc="#B34700", ec="w")
        words = f"Leaf {number}\n{end - begin} x {end - begin}"
        bottom.text((begin + end) / 2, (begin + end) / 2, words, color="w", ha="center", va="center", fontsize=8)
        continue
    depths[[node + 1, child]] = depths[node] + 1
    middle = cuts.begin[child]
    for x, y, one, other in ((middle, begin, node + 1, child), (begin, middle, child, node + 1)):
        width, height = (end - middle, middle - begin) if x == middle else (middle - begin, end - middle)
        bottom.add_patch(plt.Rectangle((x, y), width, height, fc=plt.get_cmap("Blues")(0.15 + 0.12 * depths[node]), ec="w"))
        ranks = f"{matrix.ranks[one]} x {matrix.ranks[other]}"
        bottom.text(x + width / 2, y + height / 2, ranks, ha="center", va="center", fontsize=13 - 1.5 * depths[node])
bottom.set(title="Blocks of the kernel matrix", xlim=(0, len(X)), ylim=(len(X), 0), aspect="equal", xticks=[], yticks=[])
