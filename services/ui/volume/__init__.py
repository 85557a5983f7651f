"""Read the volume: runs from their stores, data sets, and reports and videos as open files."""
