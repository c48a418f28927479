"""The steps of plain and of conjugate SMO on a problem of three rows, in the plane of feasible points."""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from streamsvm.batch import CSMOClassifier

X, y = np.array([[0.0], [0.2], [0.4]]), np.array([1.0, -1.0, 1.0])
Q = y[:, None] * np.exp(-((X - X.T) ** 2)) * y
warnings.simplefilter("ignore", ConvergenceWarning)  # fits stop early, to record the coefficients after each step


def trace_coefficients(conjugate: bool) -> np.ndarray:
    """Return the dual coefficients after 0, 1, 2, ... steps, [steps + 1, 3]."""
    points = [np.zeros(3)]
    for steps in range(1, 200):
        model = CSMOClassifier(gamma=1.0, C=1000.0, conjugate=conjugate, max_iter=steps).fit(X, y)
        points.append(np.zeros(3))
        points[-1][model.support_] = np.abs(model.dual_coef_[0])
        if model.fit_status_ == 0:
            break
    return np.array(points)


plt.style.use("seaborn-v0_8-colorblind")
figure, axis = plt.subplots(figsize=(6, 5), layout="constrained")
inset = axis.inset_axes((0.56, 0.05, 0.42, 0.42), xlim=(206.0, 225.0), ylim=(206.0, 225.0), xticks=[], yticks=[])
first, third = np.meshgrid(np.linspace(-10.0, 300.0, 200), np.linspace(-10.0, 260.0, 200))
a = np.stack([first, first + third, third])  # the sum of y a is 0
objective = 0.5 * np.einsum("ist,ij,jst->st", a, Q, a) - a.sum(axis=0)
axis.contour(first, third, objective, levels=20, colors="0.8", linewidths=0.8, linestyles="solid")
paths = {"Plain SMO": trace_coefficients(False), "Conjugate SMO": trace_coefficients(True)}
for part, size in (axis, 4), (inset, 2.5):
    for (name, points), style, color in zip(paths.items(), ("o-", "s--"), ("C2", "C0"), strict=True):
        part.plot(points[:, 0], points[:, 2], style, ms=size, lw=1.2, color=color, label=f"{name}: {len(points) - 1} steps")
    part.plot(points[-1, 0], points[-1, 2], "k*", ms=9, label="Optimum")
axis.indicate_inset_zoom(inset, edgecolor="k")
axis.set(xlabel="Dual coefficient of the first row", ylabel="Dual coefficient of the third row")
axis.legend(loc="upper left", framealpha=1.0)
