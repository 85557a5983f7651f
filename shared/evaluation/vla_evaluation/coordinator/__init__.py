"""One run on several machines: the machine that holds the run store answers for it over HTTP, and others join.

SQLite's journal does not work across hosts, and two hosts have two clocks. So the store stays where its evaluator is,
and so does the only clock: who has joined sends what happened and never when.
"""

VERSION = 2  # of what is said between the two
