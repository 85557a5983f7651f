"""Runs: list, live status and results, comparison, leaderboard."""
