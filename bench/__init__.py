"""Benchmarks: each warms up, measures both sides interleaved in one run, and ends with FIGURE lines."""
