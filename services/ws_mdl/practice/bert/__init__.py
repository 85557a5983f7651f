"""An encoder alone, which fills in masked words: a small BERT."""
