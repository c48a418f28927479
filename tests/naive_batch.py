"""Slow reference implementations of the exact solvers: full kernel matrices, LIBSVM's 2n variables for regression, plain SMO."""

import numpy as np

#: Kernels that are positive definite.
KERNELS = [{"kernel": "rbf", "gamma": 0.7}, {"kernel": "linear"}, {"kernel": "poly", "gamma": 0.5, "coef0": 1.0, "degree": 2}]


def kernel_matrix(X, Y, kernel="rbf", gamma=1.0, coef0=0.0, degree=3):
    X, Y = np.asarray(X, float), np.asarray(Y, float)
    if kernel == "rbf":
        return np.exp(-gamma * ((X[:, None, :] - Y[None, :, :]) ** 2).sum(axis=2))
    if kernel == "linear":
        return X @ Y.T
    return np.tanh(gamma * X @ Y.T + coef0) if kernel == "sigmoid" else (gamma * X @ Y.T + coef0) ** degree


def smo(Q, p, y, C, tol, max_iter=1_000_000, start=None):
    """min 1/2 a'Qa + p'a, y'a = y'start, 0 <= a <= C, by the most violating pair and second-order selection; (a, gap)."""
    a = np.zeros(len(p)) if start is None else np.array(start, float)
    gradient = Q @ a + p
    for _ in range(max_iter):
        up = ((y > 0) & (a < C)) | ((y < 0) & (a > 0.0))
        low = ((y > 0) & (a > 0.0)) | ((y < 0) & (a < C))
        value = -y * gradient
        i = int(np.flatnonzero(up)[value[up].argmax()])
        gap = value[i] - value[low].min()
        if gap < tol:
            break
        curvature = np.maximum(Q[i, i] + np.diag(Q) - 2.0 * y[i] * y * Q[i], 1e-12)
        gain = np.where(low & (value < value[i]), (value[i] - value) ** 2 / curvature, -1.0)
        j = int(gain.argmax())
        step = (value[i] - value[j]) / curvature[j]
        step = min(step, C[i] - a[i] if y[i] > 0 else a[i], a[j] if y[j] > 0 else C[j] - a[j])
        for k, change in ((i, y[i] * step), (j, -y[j] * step)):
            gradient += Q[:, k] * change
            a[k] += change
            a[k] = 0.0 if abs(a[k]) < 1e-12 * C[k] else C[k] if abs(a[k] - C[k]) < 1e-12 * C[k] else a[k]
    return a, gap


def classify(K, y, C, tol):
    """Signed coefficients y_i alpha_i and the objective. ``y`` of -1 and 1, ``C`` for each row."""
    y = np.asarray(y, float)
    a, _ = smo(K * np.outer(y, y), -np.ones(len(y)), y, np.broadcast_to(C, y.shape).astype(float), tol)
    return a * y, classification_objective(K, y, a * y)


def regress(K, t, C, epsilon, tol):
    """Coefficients alpha_i - alpha_i^* and the objective."""
    n = len(t)
    y = np.concatenate([np.ones(n), -np.ones(n)])
    Q = np.tile(K, (2, 2)) * np.outer(y, y)
    a, _ = smo(Q, np.concatenate([epsilon - t, epsilon + t]), y, np.tile(np.broadcast_to(C, n).astype(float), 2), tol)
    b = a[:n] - a[n:]
    return b, regression_objective(K, t, epsilon, b)


def one_class(K, C, nu, tol):
    """Coefficients and the objective of a one-class machine; LIBSVM's start."""
    C = np.asarray(C, float)
    start, left = np.zeros(len(C)), nu * C.sum()
    for i in range(len(C)):
        start[i] = min(C[i], left)
        left -= start[i]
    a, _ = smo(K, np.zeros(len(C)), np.ones(len(C)), C, tol, start=start)
    return a, float(0.5 * a @ K @ a)


def classification_objective(K, y, b):
    return float(0.5 * b @ K @ b - np.asarray(y, float) @ b)


def regression_objective(K, t, epsilon, b):
    return float(0.5 * b @ K @ b - b @ t + epsilon * np.abs(b).sum())


def gap(K, b, lower, upper, targets, epsilon=0.0):
    """The largest violation of optimality of min 1/2 b'Kb - targets'b + epsilon |b|; for classification targets are y."""
    gradient = K @ b - targets
    rise = gradient + np.where(b >= 0.0, epsilon, -epsilon)
    fall = gradient + np.where(b > 0.0, epsilon, -epsilon)
    return float(fall[b > lower].max() - rise[b < upper].min())


def run_admm(K, t, lower, upper, kink, epsilon, beta, relaxation, steps):
    """min 1/2 b'Kb - t'b + epsilon |b - kink|_1 within bounds and with sum zero, by ADMM; (z, multiplier of the sum)."""
    n = len(t)
    system = np.block([[K + beta * np.eye(n), np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]])
    z, u, bias = np.zeros(n), np.zeros(n), 0.0
    for _ in range(steps):
        solution = np.linalg.solve(system, np.append(t + beta * (z - u), 0.0))
        x, bias = solution[:n], solution[n]
        mixed = relaxation * x + (1.0 - relaxation) * z
        z = np.empty(n)
        for i in range(n):  # of a convex function in one variable, the best among the points where its slope may change sign
            v = mixed[i] + u[i]
            candidates = np.clip([v - epsilon / beta, v + epsilon / beta, kink[i], lower[i], upper[i]], lower[i], upper[i])
            costs = epsilon * np.abs(candidates - kink[i]) + 0.5 * beta * (candidates - v) ** 2
            z[i] = candidates[costs.argmin()]
        u = u + mixed - z
    return z, bias


def compositional(X, cuts, skeletons, ridge, **kernel):
    """The compositional kernel of the rows X, in the order of the leaves, by its definition: climb from both leaves to where
    their paths meet. ``skeletons`` has the rows of each node's skeleton; the root has none."""
    parents = {}
    for node, right in enumerate(cuts.right):
        if right >= 0:
            parents[node + 1] = parents[int(right)] = node
    leaf_of = {row: leaf for leaf in cuts.leaves.tolist() for row in range(cuts.starts[leaf], cuts.stops[leaf])}

    def interpolated(rows, node):
        """The kernel values of rows with the skeleton, times the inverse of the skeleton's matrix."""
        J = X[skeletons[node]]
        K = kernel_matrix(J, J, **kernel)
        return np.linalg.solve(K + ridge * K.diagonal().max() * np.eye(len(J)), kernel_matrix(J, rows, **kernel)).T

    def climb(row):
        """For each node on the way up, the row's weights of the node's skeleton."""
        node, rows, found = leaf_of[row], X[[row]], np.ones((1, 1))
        weights = {}
        while node in parents:
            found = found @ interpolated(rows, node)
            weights[node], rows, node = found, X[skeletons[node]], parents[node]
        return weights

    paths = [climb(row) for row in range(len(X))]
    out = np.empty((len(X), len(X)))
    for i, first in enumerate(paths):
        for j, second in enumerate(paths):
            if leaf_of[i] == leaf_of[j]:
                out[i, j] = kernel_matrix(X[[i]], X[[j]], **kernel)[0, 0]
                continue
            parent = max(set(map(parents.get, first)) & set(map(parents.get, second)))
            a, b = (next(node for node in path if parents[node] == parent) for path in (first, second))
            between = kernel_matrix(X[skeletons[a]], X[skeletons[b]], **kernel)
            out[i, j] = (first[a] @ between @ second[b].T)[0, 0]
    return out


def descend_once(K, t, lower, upper, kink, epsilon, b, bias, leaves, passes):
    """A walk of block coordinate descent over the leaves, slices of the rows; changes b."""
    for leaf in leaves:
        for _ in range(passes):
            for i in range(leaf.start, leaf.stop):
                z, width = b[i] - (K[i] @ b + bias - t[i]) / K[i, i], epsilon / K[i, i]
                z = z - width if z - width > kink[i] else z + width if z + width < kink[i] else kink[i]
                b[i] = np.clip(z, lower[i], upper[i])
