"""A one-page report about a model: its data, scores, important columns, and explanations of some decisions."""
