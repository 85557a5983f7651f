"""Draws what LIBERO's cameras see: the stock renderer's pixels in a fraction of its time. README.md explains how."""
