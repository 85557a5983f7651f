"""`python -m services.aloha SUITE --policy-url URL` evaluates on ALOHA; see `vla_evaluation.cli`."""

import sys

from services.aloha.benchmark import BENCHMARK
from vla_common import entrypoint
from vla_evaluation.cli import main

if __name__ == "__main__":
    entrypoint.run(main, BENCHMARK, sys.argv[1:])
