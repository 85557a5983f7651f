"""`./lab doctor`: checks of this machine and clone, declared as data and run in parallel."""
