"""Lab 1: the Transformer. Begin with model.py; docs/transformer.md leads through the rest."""
