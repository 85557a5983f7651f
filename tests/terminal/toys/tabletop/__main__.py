"""`python -m services.tabletop SUITE --policy-url URL` evaluates a policy on pointing."""

import sys

from services.tabletop.benchmark import BENCHMARK
from vla_common import entrypoint
from vla_evaluation.cli import main

if __name__ == "__main__":
    entrypoint.run(main, BENCHMARK, sys.argv[1:])
