"""`python -m services.libero SUITE --policy-url URL` evaluates a policy on LIBERO; see `vla_evaluation.cli`."""

import sys

from vla_common import entrypoint, memory

if __name__ == "__main__":
    with memory.importing():
        from services.libero.benchmark import BENCHMARK
        from vla_evaluation.cli import main

    entrypoint.run(main, BENCHMARK, sys.argv[1:])
