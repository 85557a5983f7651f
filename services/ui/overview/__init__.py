"""Home: what runs now, and what the lab has."""
