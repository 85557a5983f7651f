"""`python -m services.metaworld SUITE --policy-url URL` evaluates on Meta-World; see `vla_evaluation.evaluate`."""

import sys

from services.metaworld.benchmark import BENCHMARK
from vla_common import endings
from vla_evaluation.evaluate import main

if __name__ == "__main__":
    endings.run(main, BENCHMARK, sys.argv[1:])
