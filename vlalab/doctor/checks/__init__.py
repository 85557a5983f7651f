"""The checks, one module per group; each is a small function of a machine's texts, and what it means as data."""
