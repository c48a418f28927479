"""What all tests share."""

import numpy as np
from hypothesis import settings
from numba import config

settings.register_profile("whole", deadline=None)  # a first example compiles, and a machine may have other work
settings.load_profile("whole")

if config.DISABLE_JIT:
    # Compiled arithmetic overflows in silence: integers wrap around (random numbers are made of that), floats become infinite.
    np.seterr(all="ignore")
