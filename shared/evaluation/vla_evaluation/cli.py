"""`python -m services.BENCHMARK SUITE --policy-url URL`: the program of every benchmark.

Two subcommands: `record SUITE …` records demonstrations, `join URL` works on a run that another machine's evaluator
serves.
"""

import tyro

from vla_evaluation.benchmark import Benchmark
from vla_evaluation.config import parse_args
from vla_evaluation.coordinator import join
from vla_evaluation.evaluate import evaluate, guarded
from vla_evaluation.recording import record


def main(benchmark: Benchmark, arguments: list[str]) -> int:
    """Run the program that the arguments name; return the exit code."""
    if arguments[:1] == ["record"]:
        return record.main(benchmark, arguments[1:])
    if arguments[:1] == ["join"]:
        return guarded(lambda: join.join(benchmark, tyro.cli(join.JoinConfig, args=arguments[1:], prog="join")))
    return guarded(lambda: evaluate(benchmark, parse_args(arguments, benchmark.suites)))
