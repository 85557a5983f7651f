"""Run folders on the volume: made, found, resumed, listed and removed."""

STORE = "run.sqlite"  # the file that makes a folder a run
