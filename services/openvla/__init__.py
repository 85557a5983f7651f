"""OpenVLA: an engine of our own that reads the published checkpoints, and the service around it."""
