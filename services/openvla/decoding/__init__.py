"""From an image and a prompt to seven action tokens: batches, speculative decoding, CUDA graphs, tokens to actions."""
