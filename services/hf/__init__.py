"""Hugging Face practice: three kinds of models, in the hub's formats and with its libraries."""
