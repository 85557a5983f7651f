"""Shared by all training programs: devices, processes, progress, stop signals, weight files, curves."""
