"""A policy asked what it would have done in a recorded data set: no simulator, any policy, any data set."""
