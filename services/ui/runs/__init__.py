"""Runs: the list, one as it goes and when it is done, two compared, all of them as a leaderboard."""
