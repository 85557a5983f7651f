"""Runs on the volume: created, found, resumed, listed and deleted."""

STORE = "run.sqlite"  # the file that makes a directory a run
