"""Modules that single benchmarks are made of; each serves the benchmark it is named after."""
