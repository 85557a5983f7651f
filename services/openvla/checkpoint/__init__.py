"""What a published folder holds, read and checked: configuration, weights, tokenizer, statistics; or made up, tiny."""
