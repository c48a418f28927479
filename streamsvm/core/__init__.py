"""The parts of learners and solvers: blocks of memory, kernels, budget strategies, steps, and how they are compiled."""
