"""What is wrong with this machine and clone: checks that are data, run side by side, told as a table or as JSON."""
