"""Render LIBERO's cameras with the stock renderer's pixels in a fraction of its time. README.md explains how."""
