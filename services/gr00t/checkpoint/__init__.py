"""What a checkpoint folder holds: configuration, weights, tokenizer, robots; reading, getting and making one."""
