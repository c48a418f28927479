"""Prequential scores: metrics of river and of probabilities, tables such as a confusion matrix, and baselines for them."""
