"""The leaves of a cluster tree with their skeletons, and the blocks of the compressed matrix."""

import matplotlib.pyplot as plt
import numpy as np
from river import datasets
from scipy.spatial import ConvexHull

from streamsvm.batch.hss import HSSMatrix

X = np.array([list(x.values()) for x, _ in datasets.Bananas()])[:2048]
K = HSSMatrix.compress(X, gamma=1.0, rel_tol=0.05, leaf_size=256)
tree, skeletons = K._tree, [node.skeleton for node in K._nodes]
rows, leaves = X[tree.order], sorted(tree.leaves, key=lambda leaf: tree.starts[leaf])
plt.style.use("seaborn-v0_8-colorblind")
figure, (top, bottom) = plt.subplots(2, 1, figsize=(6, 10), layout="constrained", height_ratios=(4, 5))
box = {"boxstyle": "round,pad=0.2", "fc": "w", "lw": 0}
for number, node in enumerate(leaves, 1):
    leaf = rows[tree.starts[node] : tree.stops[node]]
    skeleton = rows[skeletons[node]]
    color = f"C{number % 4}"
    top.fill(*leaf[ConvexHull(leaf).vertices].T, fc=color, ec="0.3", alpha=0.2)
    top.plot(leaf[:, 0], leaf[:, 1], ".", ms=3, color=color, alpha=0.6)
    top.plot(skeleton[:, 0], skeleton[:, 1], "o", ms=4, color=color, mec="k", mew=0.8)
    top.text(*leaf.mean(axis=0), number, weight="bold", ha="center", va="center", bbox=box)
top.set(title="Eight leaves, and the rows of their skeletons", xticks=[], yticks=[], aspect="equal")

for node, (left, right) in enumerate(tree.children):
    start, stop = tree.starts[node], tree.stops[node]
    if left < 0:
        bottom.fill([start, stop, stop, start], [start, start, stop, stop], fc="#B34700", ec="w")
        words = f"Leaf {leaves.index(node) + 1}\n{stop - start} x {stop - start}"
        bottom.text((start + stop) / 2, (start + stop) / 2, words, color="w", ha="center", va="center", fontsize=8)
        continue
    middle = max(tree.starts[left], tree.starts[right])
    first, second = sorted((left, right), key=lambda child: tree.starts[child])
    for x, y, row_node, column_node in ((middle, start, first, second), (start, middle, second, first)):
        width, height = (stop - middle, middle - start) if x == middle else (middle - start, stop - middle)
        bottom.add_patch(plt.Rectangle((x, y), width, height, fc=plt.get_cmap("Blues")(0.15 + 0.12 * tree.level[node]), ec="w"))
        ranks = f"{len(skeletons[row_node])} x {len(skeletons[column_node])}"
        bottom.text(x + width / 2, y + height / 2, ranks, ha="center", va="center", fontsize=13 - 1.5 * tree.level[node])
bottom.set(title="Blocks of the kernel matrix", xlim=(0, len(X)), ylim=(len(X), 0), aspect="equal", xticks=[], yticks=[])
