"""The run store: one SQLite file per run, the only truth about which episodes are done."""
