"""The simulator's page: how old a picture is when it stands in the browser, from the end of its rendering on.

A random policy drives at real time (20 steps a second, 10 pictures of two cameras) on libero_goal task 0. Simulator,
page and policy are programs of their own, and a headless Chromium looks at the page. Both clocks are this machine's.

    ./lab bench simulator [--quick]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

from bench.common import figure
from tests.browser import Browser, find

ENVIRONMENT = "host"
ROOT = Path(__file__).resolve().parents[1]
START_S = 300.0
AGES = """
(() => {
  window.ages = [];
  const canvas = document.querySelector("#cameras canvas:last-of-type");
  const note = () => requestAnimationFrame(() => {
    window.ages.push(performance.timeOrigin + performance.now() - Number(canvas.dataset.rendered));
  });
  new MutationObserver(note).observe(canvas, { attributes: true, attributeFilter: ["data-rendered"] });
})()
"""


@contextlib.contextmanager
def program(folder: Path, environment: str, said: str, *words: str):
    """Gives the address that a program of an environment says it has, and ends it."""
    python = ROOT / "images" / environment / ".venv/bin/python"
    if not python.exists():
        raise SystemExit(f"environment '{environment}' is not made: ./lab env {environment}")
    log = folder / f"{words[0]}.txt"
    shared = (ROOT / "shared" / name for name in ("common", "contract", "evaluation"))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *shared)))}
    with open(log, "w") as output:
        process = subprocess.Popen([str(python), "-m", *words, "--port", "0"], env=env, stdout=output, stderr=output)
    try:
        end = time.monotonic() + START_S
        while not (found := re.search(rf"{said} (http://[\d.:]+)", log.read_text())):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{words[0]} did not start:\n{log.read_text()}")
            time.sleep(0.1)
        yield found[1]
    finally:
        process.terminate()
        process.wait(30)


def ages(shown: Browser, url: str, seconds: float) -> list[float]:
    """Returns the age in ms of every picture that the page has shown in that time."""
    shown.go(f"{url}/simulator")
    shown.until("document.querySelector('[name=task]').options.length > 5", START_S)
    for name, value in (("suite", "libero_goal"), ("policy", "random")):
        field = f"document.querySelector('[name={name}]')"
        shown.js(f"{field}.value = {value!r}; {field}.dispatchEvent(new Event('change'))")
    shown.click("#opening button")
    shown.until("Number(document.querySelector('#at-step').textContent) > 10", START_S)
    shown.js(AGES)
    time.sleep(seconds)
    return shown.js("window.ages")


def main() -> int:
    """Prints the figures; returns 1 where one misses its target."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="look for 3 seconds instead of 10 (an episode has 15)")
    seconds = 3.0 if parser.parse_args().quick else 10.0
    if find() is None:
        raise SystemExit("no Chromium is installed: apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="vlalab-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        policy = stack.enter_context(program(folder, "libero", "listening on", "services.libero.policies", "random"))
        simulator = stack.enter_context(
            program(folder, "libero", "listening on", "services.libero.live", "--policies", f"random={policy}")
        )
        words = ("services.ui", "--policy-url", policy, "--services", f"simulator={simulator}")
        url = stack.enter_context(program(folder, "ui", "the page is at", *words))
        with Browser() as shown:
            found = sorted(ages(shown, url, seconds))
    print(f"{len(found)} pictures in {seconds:g} s, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    figure("simulator-frames", len(found) / seconds, "1/s", ">=9")
    figure("simulator-age-median", found[len(found) // 2], "ms", "<=50")
    return 0 if figure("simulator-age-p95", found[int(len(found) * 0.95)], "ms", "<=100") else 1


if __name__ == "__main__":
    raise SystemExit(main())
