"""Reports in a browser: a small server that hands out what belongs to reports, and changes nothing."""
