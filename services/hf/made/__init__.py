"""What stands in for the hub where there is none: texts, tokenizers and small models in the hub's formats."""
