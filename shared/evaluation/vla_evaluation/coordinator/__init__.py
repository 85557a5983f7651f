"""One run on several machines: the machine with the run store serves it over HTTP, and others join.

SQLite's journal does not work across hosts, and two hosts have two clocks. So the store stays on its evaluator's
machine, with the only clock: a joined machine sends events without times.
"""

VERSION = 2  # of the calls between the two
