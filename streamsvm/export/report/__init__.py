"""The report of a model, on one page: what was learned from what, how well, what matters, and why it decides so."""
