"""Read and check a checkpoint: configuration, weights, tokenizer, statistics; create a tiny random one."""
