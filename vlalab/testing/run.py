"""Run parts of the tests, in parallel as far as cores and memory allow; print the output of each when it ends."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import TextIO

from vlalab.host import paths
from vlalab.host.console import LabError, log_info, unknown
from vlalab.testing import parts
from vlalab.testing.parts import PartResult, SuiteOptions, SuitePart

QUICK = ("lint", "host", "contract")
NAMES = ("lint", "docker", "contract", "host", "classroom", "terminal", *parts.ENVIRONMENTS, *paths.variant_names(),
         *parts.SERVICES, "chaos")  # fmt: skip
THREADS = "OMP_NUM_THREADS"
CHROME = "https://dl.google.com/linux/direct/google-chrome-stable_current_amd64.deb"


def run(names: Sequence[str], options: SuiteOptions) -> int:
    """Run the parts of those names (none or "all": every one) and print the counts. Return the exit code."""
    for name in names:
        if name not in (*NAMES, "all"):
            raise LabError(unknown("part", name, ["all", *NAMES]))
    selected = names if names and "all" not in names else QUICK if options.quick else NAMES
    if options.nightly:
        os.environ[parts.NIGHTLY] = "1"  # read by tests/conftest.py in every process
    if not options.quick and set(selected) != {"lint"}:
        install_programs()
    results = run_parts([p for p in parts.all_parts(options) if p.name.split()[0] in selected], options)
    if options.quick and not names:
        results.append(parts.skipped("others", f"--quick runs {', '.join(QUICK)} only"))
    return print_summary(results)


def missing_programs() -> list[str]:
    """Return the packages of programs that no environment has, and whose tests are skipped without them."""
    from tests import browser, ssh_server

    found = {"chromium": browser.find(), "openssh-server": ssh_server.find(), "nginx": shutil.which("nginx")}
    return [package for package, path in found.items() if path is None]


def install_programs() -> None:
    """Install the missing programs with apt, as root on Debian or Ubuntu."""
    from tests.docker import packages

    if os.geteuid() == 0 and shutil.which("apt-get") and (names := missing_programs()):
        try:
            packages.install(*names)
        except packages.Unavailable as error:
            log_info(f"{error}; tests that need it are skipped")


def run_parts(selected: Sequence[SuitePart], options: SuiteOptions) -> list[PartResult]:
    """Run the parts and return their results in order. Environments that part `docker` tested are not repeated."""
    if len(selected) == 1:
        return _run_part(selected[0], options, None)
    # Threads that wait for each other on cores where others compute take three times the processor time.
    os.environ.setdefault(THREADS, str(max(1, len(os.sched_getaffinity(0)) // parts.max_parallel_parts())))
    results: list[PartResult] = []
    for stage in sorted({part.stage for part in selected}):
        tested = {result.name for result in results}
        results += _run_batch([p for p in selected if p.stage == stage and p.name not in tested], options)
    return results


def _run_batch(batch: Sequence[SuitePart], options: SuiteOptions) -> list[PartResult]:
    def run_logged(part: SuitePart) -> tuple[list[PartResult], str]:
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            results = _run_part(part, options, output)
            output.seek(0)
            return results, output.read()

    with ThreadPoolExecutor(parts.max_parallel_parts()) as pool:
        futures: list[Future[tuple[list[PartResult], str]]] = [pool.submit(run_logged, part) for part in batch]
        try:
            for future in as_completed(futures):
                print(future.result()[1], end="", flush=True)
            return [result for future in futures for result in future.result()[0]]
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


def print_summary(results: Sequence[PartResult]) -> int:
    """Print a row per result, the reasons of skips, missing programs and the totals. Return the exit code."""
    print(f"\n{'part':<16}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}")
    reasons, totals = Counter[str](), Counter[str]()
    for result in results:
        counts = {"passed": result.passed, "failed": result.failed, "skipped": result.skipped}
        print(f"{result.name:<16}{result.passed:>8}{result.failed:>8}{result.skipped:>9}{result.seconds:>9.0f}")
        reasons.update(result.reasons)
        totals.update(counts)
    for reason, count in reasons.items():
        print(f"skipped {count}: {reason}")
    if reasons and (names := missing_programs()):
        sudo = "" if os.geteuid() == 0 else "sudo "
        print(f"to run the tests that need them: {sudo}apt-get install -y {' '.join(names)}")
        if "chromium" in names:
            print(f"where Chromium is only a snap, which does not run in containers (Ubuntu), install Chrome: {CHROME}")
    print(f"\n{totals['passed']} passed, {totals['failed']} failed, {totals['skipped']} skipped", flush=True)
    return 1 if totals["failed"] or not totals["passed"] else 0
