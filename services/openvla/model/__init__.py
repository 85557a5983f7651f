"""The model itself, as tensor functions: vision backbone, language model, their linear layers and attention."""
