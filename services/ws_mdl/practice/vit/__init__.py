"""A picture as a sentence of patches: the Vision Transformer."""
