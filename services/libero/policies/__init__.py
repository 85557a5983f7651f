"""Policies that need no weights: `oracle` (scripted, from privileged state), `random` and `replay`."""
