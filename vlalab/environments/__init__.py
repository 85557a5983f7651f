"""images/<env>/.venv and its lock: interpreters, pins, installation."""
