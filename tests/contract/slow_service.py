"""A program that serves a small policy: `python slow_service.py KIND PORT [SECONDS]`; the log names the address."""

import sys

from fakes import BrokenLoader, CountingPolicy, SlowPolicy

from vla_contract import serve

if __name__ == "__main__":
    kind, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    policies = {"slow": lambda: SlowPolicy(seconds), "counting": CountingPolicy, "broken": BrokenLoader(seconds)}
    serve(policies[kind], port=port, linger_s=1.0)
