"""Practice labs: models that the course's reading asks a student to try, each made of lab 1's own blocks.

A folder each: `model.py` is the file to read (the model and its loss), `data.py` what it learns from, `config.py` its
settings, `train.py` the run. What they share stands here: `settings.py` and `training.py`. docs/practice.md leads
through them.
"""
