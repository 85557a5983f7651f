"""Runs a suite against a policy service: protocol profiles, workers, run store, videos, report, comparison."""
