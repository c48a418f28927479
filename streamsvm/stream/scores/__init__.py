"""Scores of a stream: metrics of river, metrics of probabilities, tables of labels; what guessing gives; the learning curve."""
