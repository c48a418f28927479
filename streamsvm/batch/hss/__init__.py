"""Kernel matrices of many rows in hierarchically semi-separable (HSS) form: products, solves and determinants in linear time.

The modules in reading order: `trees` orders rows such that similar ones are close to each other; `skeletons` chooses the rows of
each node from which the others are interpolated; `compression` finds nearest neighbours, and increases the precision until the
estimated error is small enough; `factorization` solves equations with the result; `matrix` is the public class. `compositional`
has matrices of another kind, whose kernels are also defined for new rows.

Needs the extra ``batch``.

>>> import numpy as np
>>> from streamsvm.batch.hss import HSSMatrix

Kernel ridge regression:

>>> X = np.random.default_rng(0).uniform(-3.0, 3.0, size=(2000, 2))
>>> y = np.sin(X[:, 0]) * np.cos(X[:, 1])
>>> K = HSSMatrix.compress(X, gamma=0.5, rel_tol=1e-3)
>>> coefficients = K.factorize(0.1).solve(y)
>>> bool(np.abs(K.expand(X[:5], coefficients) - y[:5]).max() < 0.01)
True
"""

from streamsvm.batch.hss.factorization import HSSFactorization
from streamsvm.batch.hss.matrix import HSSMatrix

__all__ = ["HSSFactorization", "HSSMatrix"]
