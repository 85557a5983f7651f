"""The error of data sets."""

from __future__ import annotations


class DatasetError(ValueError):
    """A data set cannot be read or written; the message names the file, what was expected, and the next step."""
