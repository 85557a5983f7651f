"""`python -m services.libero SUITE --policy-url URL` evaluates a policy on LIBERO; see `vla_evaluation.evaluate`."""

import sys

from services.libero.benchmark import BENCHMARK
from vla_common import endings
from vla_evaluation.evaluate import main

if __name__ == "__main__":
    endings.run(main, BENCHMARK, sys.argv[1:])
