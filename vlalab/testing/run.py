"""Run parts of the tests, in parallel as far as cores and memory allow; print the output of each when it ends."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TextIO

from vlalab.host import paths
from vlalab.host.console import LabError, log_info, unknown
from vlalab.testing import parts, programs
from vlalab.testing.parts import SuiteOptions, SuitePart
from vlalab.testing.results import PartResult, print_summary, skipped

QUICK = ("lint", "host", "contract")
NAMES = (
    "lint",
    "docker",
    "contract",
    "host",
    "terminal",
    *parts.ENVIRONMENTS,
    *paths.variant_names(),
    *parts.SERVICES,
    "chaos",
)
THREADS = "OMP_NUM_THREADS"


def run(names: Sequence[str], options: SuiteOptions) -> int:
    """Run the parts of those names (none or "all": every one) and print the counts. Return the exit code."""
    for name in names:
        if name not in (*NAMES, "all"):
            raise LabError(unknown("part", name, ["all", *NAMES]))
    selected = names if names and "all" not in names else QUICK if options.quick else NAMES
    if options.nightly:
        os.environ[parts.NIGHTLY] = "1"  # read by tests/conftest.py in every process
    if not options.quick:
        programs.install(selected)
    results = run_parts([p for p in parts.all_parts(options) if p.name.split()[0] in selected], options)
    if options.quick and not names:
        results.append(skipped("others", f"--quick runs {', '.join(QUICK)} only"))
    return print_summary(results, programs.advice(selected))


def run_parts(selected: Sequence[SuitePart], options: SuiteOptions) -> list[PartResult]:
    """Run the parts and return their results in order. Environments that part `docker` tested are not repeated."""
    if len(selected) == 1:
        return _run_part(selected[0], options, None)
    # Threads that wait for each other on cores where others compute take three times the processor time.
    os.environ.setdefault(THREADS, str(max(1, len(os.sched_getaffinity(0)) // parts.max_parallel_parts())))
    results: list[PartResult] = []
    with tempfile.TemporaryDirectory(prefix="vlalab-test-") as directory:
        for stage in sorted({part.stage for part in selected}):
            tested = {result.name for result in results}
            batch = [part for part in selected if part.stage == stage and part.name not in tested]
            results += _run_batch(batch, options, Path(directory))
    return results


def _run_batch(batch: Sequence[SuitePart], options: SuiteOptions, directory: Path) -> list[PartResult]:
    def run_logged(part: SuitePart) -> list[PartResult]:
        with (directory / f"{part.name}.txt").open("w") as output:
            return _run_part(part, options, output)

    with ThreadPoolExecutor(parts.max_parallel_parts()) as pool:
        futures: dict[Future[list[PartResult]], SuitePart] = {pool.submit(run_logged, part): part for part in batch}
        try:
            for future in as_completed(futures):
                print((directory / f"{futures[future].name}.txt").read_text(errors="replace"), end="", flush=True)
            return [result for future in futures for result in future.result()]
        except BaseException:  # Ctrl-C: what tests started ends with them
            pool.shutdown(wait=False, cancel_futures=True)
            interrupted = set()
            while not all(future.done() for future in futures):  # one may still be starting its process
                for process in {*parts.running} - interrupted:
                    process.send_signal(signal.SIGINT)
                    interrupted.add(process)
                time.sleep(0.1)
            raise


def _run_part(part: SuitePart, options: SuiteOptions, output: TextIO | None) -> list[PartResult]:
    """Return the results of a part with its time. One that cannot run is a failure."""
    log_info(f"part '{part.name}'")
    start = time.monotonic()
    try:
        results = part.run(options, output)
    except LabError as error:
        log_info(f"part '{part.name}' failed: {error}")
        results = [PartResult(part.name, failed=1)]
    results[0].seconds = time.monotonic() - start
    return results
