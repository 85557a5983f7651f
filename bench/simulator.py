"""The simulator's page: the age of an image when it appears in the browser, measured from the end of its rendering.

A random policy runs in real time (20 steps per second, 10 images of two cameras) on libero_goal task 0. Simulator, page
and policy are separate programs, and a headless Chromium displays the page. Both clocks are this machine's.

    ./lab bench simulator [--quick]
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

from bench.common import ROOT, figure, flags, missed, program
from tests.browser import Browser, find

ENVIRONMENT = "host"
START_S = 900.0  # until the scene is built
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


def python(environment: str) -> Path:
    """Return an environment's Python."""
    path = ROOT / "images" / environment / ".venv/bin/python"
    if not path.exists():
        raise SystemExit(f"environment '{environment}' not found; run `./lab env {environment}`")
    return path


def ages(browser: Browser, url: str, seconds: float) -> list[float]:
    """Return the age (ms) of every image that the page displays within `seconds`."""
    browser.go(f"{url}/simulator")
    browser.until("document.querySelector('[name=task]').options.length > 5", START_S)
    for name, value in (("suite", "libero_goal"), ("policy", "random")):
        field = f"document.querySelector('[name={name}]')"
        browser.js(f"{field}.value = {value!r}; {field}.dispatchEvent(new Event('change'))")
    browser.click("#opening button")
    browser.until("Number(document.querySelector('#at-step').textContent) > 10", START_S)
    browser.js(AGES)
    time.sleep(seconds)
    return browser.js("window.ages")


def main() -> int:
    """Print the figures; return 1 if one misses its target."""
    parser = flags(__doc__.splitlines()[0], "3 seconds instead of 10 (an episode has 15)")
    seconds = 3.0 if parser.parse_args().quick else 10.0
    if find() is None:
        raise SystemExit("Chromium not found; run `apt-get install chromium`")
    with tempfile.TemporaryDirectory(prefix="vlalab-bench-") as name, contextlib.ExitStack() as stack:
        directory, libero = Path(name), python("libero")
        policy = stack.enter_context(program(directory / "policy.txt", libero, "services.libero.policies", "random"))
        arguments = ("services.libero.live", "--policies", f"random={policy}")
        simulator = stack.enter_context(program(directory / "simulator.txt", libero, *arguments, TMPDIR=str(directory)))
        arguments = ("services.ui", "--policy-url", policy, "--services", f"simulator={simulator}")
        url = stack.enter_context(program(directory / "ui.txt", python("ui"), *arguments, ready_text="the page is at"))
        with Browser() as browser:
            delays = sorted(ages(browser, url, seconds))
    print(f"{len(delays)} images in {seconds:g} s, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    figure("simulator-frames", len(delays) / seconds, "1/s", ">=9")
    figure("simulator-age-median", delays[len(delays) // 2], "ms", "<=50", quick=True)
    figure("simulator-age-p95", delays[int(len(delays) * 0.95)], "ms", "<=100", quick=True)
    return int("simulator-age-p95" in missed)


if __name__ == "__main__":
    raise SystemExit(main())
