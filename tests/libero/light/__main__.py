"""`python -m tests.libero.light SUITE …` evaluates as `python -m services.libero` does, with the light simulator."""

import sys

from tests.libero.light import BENCHMARK
from vla_common import endings
from vla_evaluation.evaluate import main

if __name__ == "__main__":
    endings.run(main, BENCHMARK, sys.argv[1:])
