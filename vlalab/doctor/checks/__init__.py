"""The checks, one module per group: each function is a probe, its docstring what a problem means."""
