"""Decision values of one tree, of the mean of several, and of the exact machine."""

import matplotlib.pyplot as plt
import numpy as np
from river import datasets

from streamsvm.batch import CSMOClassifier, HierarchicalSVC

rows = list(datasets.Bananas())
X, y = np.array([list(x.values()) for x, _ in rows]), np.array([label for _, label in rows])
machines = {
    "One tree": HierarchicalSVC(gamma=2.0, n_trees=1, leaf_size=64, rank=8, random_state=8),
    "Three trees": HierarchicalSVC(gamma=2.0, n_trees=3, leaf_size=64, rank=8, random_state=8),
    "Six trees": HierarchicalSVC(gamma=2.0, n_trees=6, leaf_size=64, rank=8, random_state=8),
    "Exact machine": CSMOClassifier(gamma=2.0),
}
first, second = np.meshgrid(np.linspace(-3.0, 3.0, 150), np.linspace(-2.5, 2.5, 150))
grid = np.column_stack([first.ravel(), second.ravel()])
figure, axes = plt.subplots(2, 2, figsize=(6, 5.6), layout="constrained")
for axis, (name, machine) in zip(axes.flat, machines.items(), strict=True):
    values = machine.fit(X, y).decision_function(grid).reshape(first.shape)
    image = axis.pcolormesh(first, second, values, cmap="RdBu", vmin=-2.0, vmax=2.0, rasterized=True)
    axis.contour(first, second, values, levels=[0.0], colors="k", linewidths=1.2)
    axis.set(title=name, xticks=[], yticks=[])
figure.colorbar(image, ax=axes, location="bottom", extend="both", shrink=0.7, label="Decision value")
