"""The client of a policy service. It imports the protocol, and nothing of the server."""
