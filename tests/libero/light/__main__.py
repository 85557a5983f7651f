"""`python -m tests.libero.light SUITE …` evaluates as `python -m services.libero` does, with the light simulator."""

import sys

from vla_common import entrypoint, memory

if __name__ == "__main__":
    with memory.importing():
        from tests.libero.light import BENCHMARK
        from vla_evaluation.cli import main

    entrypoint.run(main, BENCHMARK, sys.argv[1:])
