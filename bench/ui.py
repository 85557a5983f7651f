"""Speed of the lab's pages on loopback: first content in a browser, a list of 500 runs, 20 concurrent users.

./lab bench ui [--quick]
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx

from bench.common import figure, flags
from bench.parts.serving import program
from tests import browser
from vla_evaluation.config import config_hash
from vla_evaluation.store.runstore import RunStore

ENVIRONMENT = "ui"
PEOPLE = 20
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
IDENTITY = {
    "suite": "libero_goal", "tasks": list(range(10)), "episodes": "0-1", "profile": "openvla",
    "policy": {"name": "vla", "checkpoint": None}, "assets": {"kind": "kit"},
}  # fmt: skip


def main() -> None:
    """Print the time of each page and the FIGURE lines."""
    quick = flags(__doc__.partition("\n")[0], "a fifth of the runs and of the rounds").parse_args().quick
    runs, rounds = (100, 3) if quick else (500, 15)
    with ExitStack() as entered:
        directory = Path(entered.enter_context(tempfile.TemporaryDirectory(prefix="vlalab-bench-ui-")))
        make_runs(directory / "runs", runs)
        arguments, variables = ("services.ui", "--policy-url", "http://127.0.0.1:9"), {"VLALAB_VOLUME": str(directory)}
        url = entered.enter_context(
            program(
                directory / "ui.txt",
                sys.executable,
                *arguments,
                ready_text="the page is at",
                VLALAB_TOKEN="",
                **variables,
            )
        )
        while httpx.get(f"{url}/readyz").status_code != 200:
            time.sleep(0.2)
        cold, warm = listed(url, rounds)
        print(f"list of {runs} runs: {cold:.0f} ms right after the start of the service, then {warm:.0f} ms")
        paints = first_contents(url, rounds) if browser.find() else {}
        print("first content: " + ", ".join(f"{path} {ms:.0f} ms" for path, ms in paints.items()))
        answers, errors = people(url, rounds)
        print(f"{PEOPLE} concurrent users: {answers} answers, {errors} errors")
        figure(f"ui-list-{runs}-runs", warm, "ms", "<=300", quick=True)
        figure(f"ui-list-{runs}-runs-just-started", cold, "ms", "<=300", quick=True)
        for path, ms in paints.items():
            figure(f"ui-first-content-{path.strip('/') or 'overview'}", ms, "ms", "<=1000", quick=True)
        figure(f"ui-errors-of-{PEOPLE}-people", errors, "errors", "<=0", quick=True)


def make_runs(root: Path, count: int) -> None:
    """Write `count` complete runs: one, and copies of it."""
    first = root / "libero_goal-vla-1"
    first.mkdir(parents=True)
    (first / "config.json").write_text("{}")
    plan = [(task, episode) for task in range(10) for episode in range(2)]
    description = {
        "tasks": [{"instruction": f"task {task}"} for task in range(10)],
        "profile": {},
        "assets": {"advice": ""},
    }
    meta = {"identity": IDENTITY, "created": 1.0, "about": description}
    made = {"suite": "libero_goal", "config_hash": config_hash(IDENTITY)}
    with RunStore.create(first / "run.sqlite", **made, plan=plan, meta=meta) as store:
        store.begin_invocation(0.0)
        for _ in plan:
            lease = store.lease("worker-0", 1, 0.0, 60.0)
            store.finish(lease, {"success": lease.episode == 0, "steps": 100}, 30.0)
        store.end_invocation(1, 60.0, "complete")
    for number in range(2, count + 1):
        shutil.copytree(first, root / f"libero_goal-vla-{number}")


def listed(url: str, rounds: int) -> tuple[float, float]:
    """Return the time (ms) of the first list of runs, and the median of the following ones."""
    took = []
    with httpx.Client(base_url=url, timeout=60.0) as client:
        for _ in range(rounds + 1):
            began = time.perf_counter()
            client.get("/runs").raise_for_status()
            took.append(1e3 * (time.perf_counter() - began))
    return took[0], statistics.median(took[1:])


def first_contents(url: str, rounds: int) -> dict[str, float]:
    """Return the median time to a page's first content in a browser whose cache is warm (ms), by path."""
    with browser.Browser() as page:
        return {
            path: statistics.median(paint(page, url + path) for _ in range(rounds)) for path in ("/", "/runs", "/ask/")
        }


def paint(page: browser.Browser, address: str) -> float:
    """Return the time (ms) to the first content of a newly opened page."""
    page.go("about:blank")
    page.go(address)
    return page.until(f"location.href == {address!r} && {PAINT}", 60.0)


def people(url: str, rounds: int) -> tuple[int, int]:
    """Return the number of answers and of errors for concurrent users of the runs pages."""

    def look(number: int) -> list[int]:
        name = f"libero_goal-vla-{number + 1}"
        with (
            httpx.Client(base_url=url, timeout=120.0) as client,
            client.stream("GET", f"/runs/{name}/events") as events,
        ):
            paths = ("/", "/runs", f"/runs/{name}", "/static/site/site.css")
            return [events.status_code, *(client.get(path).status_code for _ in range(rounds) for path in paths)]

    with ThreadPoolExecutor(PEOPLE) as pool:
        statuses = [status for answers in pool.map(look, range(PEOPLE)) for status in answers]
    return len(statuses), sum(status != 200 for status in statuses)


if __name__ == "__main__":
    main()
