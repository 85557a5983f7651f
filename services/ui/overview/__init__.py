"""The first page: what the lab has, and where it is."""
