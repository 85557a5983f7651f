"""Local stand-ins for the hub: texts, tokenizers and small models in its formats."""
