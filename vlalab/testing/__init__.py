"""`./lab test`."""
