"""LIBERO data sets from recorded demonstrations, evaluation runs and other data sets."""
