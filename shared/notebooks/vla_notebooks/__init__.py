"""Notebooks: JupyterLab behind a token, a student's home on the volume, and drawings that fit both of its themes."""
