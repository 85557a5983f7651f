"""What lies on the volume, read as it is now: runs from their stores, data sets, reports and films as open files."""
