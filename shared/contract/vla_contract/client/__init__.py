"""The client of a policy service. It does not import the server."""
