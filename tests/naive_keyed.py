"""The small models of keys in a dict: for each key, least squares in matrices and naive Bayes from the sums over its rows."""

import math

import numpy as np

from streamsvm.learners.preprocessing import BoundedScaler

MAX_LINEAR = 24


class LeastSquares:
    """Recursive least squares with forgetting. Variances never exceed those of the start."""

    def __init__(self):
        self.W, self.P = np.zeros((1, 1)), np.array([[2.0]])

    def grow(self, n, outputs):
        """Make room for ``n`` regressors and for ``outputs``."""
        W, P = self.W, self.P
        self.W, self.P = np.zeros((outputs, n)), np.diag([2.0, *[0.25] * (n - 1)])
        self.W[: len(W), : len(P)], self.P[: len(P), : len(P)] = W, P

    def learn(self, z, goals, w):
        errors, direction = goals - self.W @ z, self.P @ z
        gain = w / (0.995 + w * (z @ direction))
        self.W += gain * np.outer(errors, direction)
        self.P = (self.P - gain * np.outer(direction, direction)) / 0.995
        shrink = np.sqrt(np.minimum(np.array([2.0, *[0.25] * (len(z) - 1)]) / np.diag(self.P), 1.0))
        self.P *= np.outer(shrink, shrink)


class NaiveBayes:
    """A t distribution of each feature and label, by the discounted rows of the label."""

    def __init__(self):
        self.rows = {}

    def learn(self, z, y, w):
        self.rows.setdefault(y, []).append((z, w))

    def score(self, z, y):
        count, mean, squares = 0.0, np.zeros(len(z)), np.zeros(len(z))
        for row, w in self.rows.get(y, []):  # the first ones may lack features
            values = np.pad(row, (0, len(z) - len(row)))
            count = 0.99 * count + w
            after = mean + w * (values - mean) / count
            squares = 0.99 * squares + w * (values - mean) * (values - after)
            mean = after
        freedom, rows = count + 1.0, count + 0.5
        variance = (1.0 + squares + 0.5 * count / rows * mean**2) * (1.0 + 1.0 / rows) / freedom
        t = (z - count / rows * mean) / np.sqrt(variance)
        density = -0.5 * np.log(variance) - 0.5 * (freedom + 1.0) * np.log1p(t**2 / freedom)
        return density.sum() / math.sqrt(max(len(z), 1))


class NaiveKeys:
    """Predicts and learns rows as `KeyModels` does."""

    def __init__(self, regression):
        self.regression, self.keys, self.names, self.labels = regression, {}, [], []
        self.scaler, self.target_scaler = BoundedScaler(8.0), BoundedScaler(8.0)

    def process(self, x, y, w):
        """Return the predictions of a row, and learn it if its weight ``w`` is above 0 and it has a key."""
        key, inputs = x.get("device"), {name: value for name, value in x.items() if name != "device"}
        learns = w > 0.0 and key is not None
        if learns:
            self.names += sorted(set(inputs) - set(self.names))
            self.labels += [y] * (not self.regression and y not in self.labels)
        inputs = {name: float(inputs.get(name, 0.0)) for name in self.names}
        z = np.array([*self.scaler.transform_one(inputs).values()])
        regressors = np.array([1.0, *z[:MAX_LINEAR]])
        models = self.keys.get(key) or [LeastSquares(), NaiveBayes(), 0]
        linear, bayes, n_rows = models
        outputs = 1 if self.regression else max(len(self.labels), 1)
        linear.grow(len(regressors), outputs)
        if self.regression:
            predictions = [min(max((linear.W @ regressors)[0], -8.0), 8.0)]
        else:
            scores = np.array([bayes.score(z, label) for label in self.labels])
            ratios = [scores[k] - np.delete(scores, k).mean() for k in range(outputs)] if outputs > 1 else [0.0]
            predictions = [*np.clip(linear.W @ regressors, -8.0, 8.0), *np.clip(ratios, -6.0, 6.0)]
            predictions = predictions if outputs > 2 else predictions[np.argmax([*map(str, self.labels)] or [""]) :: 2]
        predictions.append(math.log(1.0 + n_rows))
        if learns:
            target = self.target_scaler.transform_one({"y": y})["y"] if self.regression else y
            goals = np.array([target]) if self.regression else np.where(np.array(self.labels) == y, 1.0, -1.0)
            linear.learn(regressors, goals, min(w, 100.0))
            self.scaler.learn_one(inputs)
            if self.regression:
                self.target_scaler.learn_one({"y": y})
            else:
                bayes.learn(z, y, min(w, 100.0))
            self.keys[key] = [linear, bayes, n_rows + 1]
        return predictions
