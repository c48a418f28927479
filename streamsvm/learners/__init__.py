"""The learners: one file per rule, and what they share in `base`."""
