"""What is wrong with a data set, in words."""

from __future__ import annotations


class DatasetError(ValueError):
    """A data set cannot be read or written; the text names the file, what was expected, and the way out."""
