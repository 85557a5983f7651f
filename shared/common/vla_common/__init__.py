"""Shared by every program of the lab: the volume, exit statuses, options, health checks.

Imports the standard library only, and no other package of the lab.
"""
