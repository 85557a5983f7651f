"""`python -m services.metaworld SUITE --policy-url URL` evaluates on Meta-World; see `vla_evaluation.cli`."""

import sys

from vla_common import entrypoint, memory

if __name__ == "__main__":
    with memory.importing():
        from services.metaworld.benchmark import BENCHMARK
        from vla_evaluation.cli import main

    entrypoint.run(main, BENCHMARK, sys.argv[1:])
