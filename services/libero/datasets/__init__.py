"""Data sets of LIBERO, made of recorded demonstrations, of evaluation runs and of other data sets."""
