"""The lab's pages on loopback: first content and layout shift in a browser, 500 runs, 20 users, size of scripts.

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

from bench.common import figure, flags, program
from tests import browser
from vla_evaluation.config import config_hash
from vla_evaluation.store.runstore import RunStore

ENVIRONMENT = "ui"
PEOPLE = 20
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
SHIFT = """new Promise((done) => { let sum = 0;
  const add = (list) => { for (const one of list) sum += one.hadRecentInput ? 0 : one.value; };
  const watch = new PerformanceObserver((list) => add(list.getEntries()));
  watch.observe({ type: "layout-shift", buffered: true });
  setTimeout(() => { add(watch.takeRecords()); done(sum); }, 100); })"""
SETTLE_S = 2.0  # scripts have drawn the page again
PATHS = ("/", "/runs", "/runs/libero_goal-vla-1", "/runs/compare?a=libero_goal-vla-1&b=libero_goal-vla-2",
         "/runs/leaderboard", "/ask/", "/data", "/services")  # fmt: skip
SOURCES = Path(__file__).resolve().parents[1] / "services/ui"
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
        arguments = ("services.ui", "--policy-url", "http://127.0.0.1:9")
        variables = {"VLALAB_VOLUME": str(directory), "VLALAB_TOKEN": "", "ready_text": "the page is at"}
        url = entered.enter_context(program(directory / "ui.txt", sys.executable, *arguments, **variables))
        while httpx.get(f"{url}/readyz").status_code != 200:
            time.sleep(0.2)
        size = sum(path.stat().st_size for kind in ("js", "css") for path in SOURCES.glob(f"*/static/*.{kind}"))
        figure("ui-scripts-and-styles", size / 1e3, "kB", "<=150", quick=True)
        took = []
        with httpx.Client(base_url=url, timeout=60.0) as client:
            for _ in range(rounds + 1):
                began = time.perf_counter()
                client.get("/runs").raise_for_status()
                took.append(1e3 * (time.perf_counter() - began))
        figure(f"ui-list-{runs}-runs", statistics.median(took[1:]), "ms", "<=200", quick=True)
        figure(f"ui-list-{runs}-runs-just-started", took[0], "ms", "<=300", quick=True)
        if browser.find():
            with browser.Browser() as page:  # its cache is warm after the first round
                for path in PATHS:
                    looks = [paint(page, url + path) for _ in range(rounds)]
                    name = path.partition("?")[0].strip("/").replace("/", "-") or "home"
                    figure(f"ui-first-content-{name}", statistics.median(ms for ms, _ in looks), "ms", "<=300")
                    figure(f"ui-layout-shift-{name}", max(shift for _, shift in looks), "CLS", "<=0.05", quick=True)
        with ThreadPoolExecutor(PEOPLE) as pool:
            answers = list(pool.map(lambda number: look(url, number, rounds), range(PEOPLE)))
        statuses = [status for of_one in answers for status in of_one]
        print(f"{PEOPLE} concurrent users: {len(statuses)} answers")
        errors = sum(status != 200 for status in statuses)
        figure(f"ui-errors-of-{PEOPLE}-people", errors, "errors", "<=0", quick=True)


def make_runs(root: Path, count: int) -> None:
    """Write `count` complete runs: one, and copies of it."""
    first = root / "libero_goal-vla-1"
    first.mkdir(parents=True)
    (first / "config.json").write_text("{}")
    plan = [(task, episode) for task in range(10) for episode in range(2)]
    tasks = [{"instruction": f"task {task}"} for task in range(10)]
    meta = {
        "identity": IDENTITY, "created": 1.0, "about": {"tasks": tasks, "profile": {}, "assets": {"advice": ""}},
    }  # fmt: skip
    made = {"suite": "libero_goal", "config_hash": config_hash(IDENTITY)}
    with RunStore.create(first / "run.sqlite", **made, plan=plan, meta=meta) as store:
        store.begin_invocation(0.0)
        for _ in plan:
            lease = store.lease("worker-0", 1, 0.0, 60.0)
            store.finish(lease, {"success": lease.episode == 0, "steps": 100}, 30.0)
        store.end_invocation(1, 60.0, "complete")
    for number in range(2, count + 1):
        shutil.copytree(first, root / f"libero_goal-vla-{number}")


def paint(page: browser.Browser, address: str) -> tuple[float, float]:
    """Return the time (ms) to the first content of a newly opened page, and its layout shift in SETTLE_S."""
    page.go("about:blank")
    page.go(address)
    ms = page.until(f"location.href == {address!r} && {PAINT}", 60.0)
    time.sleep(SETTLE_S)
    return ms, page.js(SHIFT)


def look(url: str, number: int, rounds: int) -> list[int]:
    """Return the statuses of the answers to one user, who watches a run and opens pages."""
    run = f"/runs/libero_goal-vla-{number + 1}"
    with httpx.Client(base_url=url, timeout=120.0) as client:
        paths = ("/", "/runs", run, f"{run}/state", "/static/site/site.css")
        return [client.get(path).status_code for _ in range(rounds) for path in paths]


if __name__ == "__main__":
    main()
