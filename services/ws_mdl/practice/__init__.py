"""Practice labs: models that the course's reading asks a student to try, each made of lab 1's own blocks.

A module each, read from top to bottom: the model, its data, its run. Their settings are in `settings.py`, their
training loop in `training.py`. docs/practice.md leads through them.
"""
