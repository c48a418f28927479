"""The compiled side of the learners: free functions over the block of a model."""
