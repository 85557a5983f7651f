"""A data set as a page: one file that needs nothing beside it and no network."""
