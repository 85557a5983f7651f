"""Skip-gram: a vector for each word, learned from which words stand near it."""
