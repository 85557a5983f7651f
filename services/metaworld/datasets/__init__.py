"""Data sets of Meta-World, made of recorded demonstrations and of evaluation runs."""
