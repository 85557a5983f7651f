"""Meta-World data sets from recorded demonstrations and evaluation runs."""
