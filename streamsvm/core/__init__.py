"""What learners and solvers are made of: blocks of memory, kernels, budget strategies, steps, and how they are compiled."""
