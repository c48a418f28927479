"""What all tests share."""

import numpy as np
from numba import config

if config.DISABLE_JIT:
    # Compiled arithmetic overflows in silence: integers wrap around (random numbers are made of that), floats become infinite.
    np.seterr(all="ignore")
