"""Show, check and download data sets for GR00T."""
