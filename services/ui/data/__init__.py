"""Data sets: the list, what is in one, an episode's films and curves, and episodes marked as bad."""
