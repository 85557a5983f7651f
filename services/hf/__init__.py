"""Hugging Face practice: models of three kinds, in the hub's own formats and by its own libraries."""
