"""An LSTM that translates, without and with attention, beside lab 1's Transformer."""
