"""A class on one server: JupyterHub in front of the course's environments."""
