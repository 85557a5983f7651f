"""The machine and the clone as the tool finds them: paths, processes, users, memory, GL, its own notes."""
