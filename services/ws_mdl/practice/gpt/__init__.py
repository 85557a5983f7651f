"""A decoder alone, which guesses the next word: a small GPT, and the 5-gram it is measured against."""
