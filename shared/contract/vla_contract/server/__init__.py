"""The HTTP server around a policy. README.md describes the path of a request through its modules."""
