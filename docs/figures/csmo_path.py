"""The steps of plain and of conjugate SMO on a problem of three rows, in the plane that is left of it."""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from streamsvm.batch import CSMOClassifier

X, y = np.array([[0.0], [0.2], [0.4]]), np.array([1.0, -1.0, 1.0])
Q = y[:, None] * np.exp(-((X - X.T) ** 2)) * y
warnings.simplefilter("ignore", ConvergenceWarning)  # fits end after so many steps, to see where they are


def path(conjugate: bool) -> np.ndarray:
    """The dual coefficients after 0, 1, 2, ... steps."""
    points = [np.zeros(3)]
    for steps in range(1, 200):
        model = CSMOClassifier(gamma=1.0, C=1000.0, conjugate=conjugate, max_iter=steps).fit(X, y)
        points.append(np.zeros(3))
        points[-1][model.support_] = np.abs(model.dual_coef_[0])
        if model.fit_status_ == 0:
            break
    return np.array(points)


figure, axis = plt.subplots(figsize=(6, 4.6), layout="constrained")
first, third = np.meshgrid(np.linspace(-10.0, 300.0, 200), np.linspace(-10.0, 260.0, 200))
a = np.stack([first, first + third, third])  # the sum of y a is 0
axis.contour(first, third, 0.5 * np.einsum("ist,ij,jst->st", a, Q, a) - a.sum(axis=0), levels=20, colors="0.8", linewidths=0.8)
for conjugate, name, color in (False, "SMO", "C1"), (True, "conjugate SMO", "C0"):
    points = path(conjugate)
    axis.plot(points[:, 0], points[:, 2], "o-", ms=4, color=color, label=f"{name}: {len(points) - 1} steps")
axis.set(xlabel="dual coefficient of the first row", ylabel="dual coefficient of the third row")
axis.legend()
