"""Checkpoints: configuration, weights, tokenizer and embodiments; published and tiny ones."""
