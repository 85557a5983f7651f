"""Reports and data sets in a browser: a small server that hands out what belongs to them, and writes marks alone."""
