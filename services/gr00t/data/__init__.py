"""Data sets as GR00T needs them: said, checked, downloaded."""
