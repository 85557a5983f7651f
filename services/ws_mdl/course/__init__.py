"""The course's own files (weights, tokenizers, arrays, curves), told by their content and set up for the labs."""
