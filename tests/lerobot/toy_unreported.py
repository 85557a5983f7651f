"""A benchmark whose environment does not say whether its task is solved; `python -m toy_unreported SUITE …`."""

import sys
from dataclasses import replace

from toy_gymnasium import table

from vla_common import entrypoint
from vla_evaluation.cli import main

BENCHMARK = replace(table(kwargs={"success": ""}), module="toy_unreported")

if __name__ == "__main__":
    entrypoint.run(main, BENCHMARK, sys.argv[1:])
