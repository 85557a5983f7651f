"""The HTTP server around a policy. The modules are in the order of the README's walk of a request."""
