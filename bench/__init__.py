"""Benchmarks: each warms up, measures all variants interleaved in one run, and ends with FIGURE lines."""
