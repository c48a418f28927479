"""Kernel matrices of many rows in hierarchically semi-separable (HSS) form: products, solves and determinants in linear time.

Read in this order: `tree` puts near rows together, `skeletons` picks the rows from which the others of a node are interpolated,
`compression` finds near neighbours and repeats that until the estimated error is small enough, `factorization` computes with the
result, and `matrix` is the public class. `cuts` and `compositional` are another form, of kernels that new rows have, too.

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
