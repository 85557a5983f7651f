"""The simulator's page: how old a picture is when it stands in the browser, from the end of its rendering on; and how
many people it takes at once.

A random policy drives at real time (20 steps a second, 10 pictures of two cameras) on libero_goal task 0. Simulator,
page and policy are programs of their own, and a headless Chromium looks at the page. Both clocks are this machine's.
Then 20 people (with --quick: 4) open a session each and ask for its pictures as the page's script does, without a
browser each; every answer that is no picture of theirs is an error, and so is a session that gives none.

    ./lab bench simulator [--quick]
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from bench.common import figure, flags
from bench.parts.serving import ROOT, program
from tests.browser import Browser, find

ENVIRONMENT = "host"
START_S = 900.0  # for scenes of all to stand
PEOPLE = 20
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
    """Returns an environment's Python."""
    found = ROOT / "images" / environment / ".venv/bin/python"
    if not found.exists():
        raise SystemExit(f"environment '{environment}' is not made: ./lab env {environment}")
    return found


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


@dataclass
class Crowd:
    """People who look at a session of their own each: time counts once all see something, or have failed."""

    count: int
    pictures: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seeing: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether nobody has to be waited for."""
        return self.seeing + len(self.errors) >= self.count

    def look(self, url: str, seconds: float) -> None:
        """Has one person look for that time; what goes wrong is noted."""
        try:
            with contextlib.closing(Wire(url)) as wire:
                self.pictures.append(self._pictures(wire, seconds))
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.errors.append(f"{type(error).__name__}: {error}")

    def _pictures(self, wire: Wire, seconds: float) -> int:
        opened = {"suite": "libero_goal", "task": 0, "policy": "random", "start": None}
        session = wire.ask("POST", "sessions", opened)["id"]
        number, seen, counted, late, end = 0, False, 0, time.monotonic() + START_S, None
        while end is None or time.monotonic() < end:
            head = wire.ask("GET", f"sessions/{session}/frame?after={number}&episode=0&have=0")
            number, shown = head["number"], bool(head.get("pictures") and head["step"])
            if head["state"] in ("gone", "failed", "trouble") or time.monotonic() > late:
                raise OSError(f"{head['state']}: {head['reason'] or 'no picture'}")
            if head["state"] == "ended":  # while others are still waited for
                wire.ask("POST", f"sessions/{session}/do", {"do": "reset"})
            self.seeing, seen = self.seeing + (shown and not seen), seen or shown
            counted += shown and end is not None
            if end is None and self.is_whole:
                end = time.monotonic() + seconds
        wire.ask("POST", f"sessions/{session}/do", {"do": "close"})
        return counted


class Wire:
    """One connection to the page, as a browser has it."""

    def __init__(self, url: str):
        self.http = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120.0)
        self.close = self.http.close

    def ask(self, method: str, path: str, body: dict | None = None) -> dict:
        """Returns the JSON of an answer, or the head of the news that it is. OSError for another answer."""
        said = None if body is None else json.dumps(body)
        self.http.request(method, f"/simulator/api/{path}", said, {"Content-Type": "application/json"} if said else {})
        answer = self.http.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise OSError(f"{path.split('/')[-1]}: {answer.status} {data[:200]!r}")
        if "json" in answer.headers["Content-Type"]:
            return json.loads(data)
        return json.loads(data[8 : 8 + int.from_bytes(data[:4], "little")])


def memory(folder: Path) -> list[int]:
    """Returns what each session's process holds (bytes), of the simulator whose temporary folder that is; what several
    share is shared out among them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{folder}/vlalab-live-".encode() in (process / "cmdline").read_bytes():
                lines = (process / "smaps_rollup").read_text().splitlines()
                found.append(1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:")))
    return found


def people(url: str, folder: Path, count: int, seconds: float) -> None:
    """Prints what so many sessions at once give and take."""
    crowd = Crowd(count)
    with ThreadPoolExecutor(count) as pool:
        for _ in range(count):
            pool.submit(crowd.look, url, seconds)
        while not crowd.is_whole:
            time.sleep(0.1)
        held = memory(folder)
    print(*dict.fromkeys(crowd.errors), sep="\n")
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"{count} people: {len(held)} sessions hold {sum(held) / 1e9:.1f} GB, {load}")
    rates = sorted(each / seconds for each in crowd.pictures) or [0.0]
    figure(f"simulator-frames-of-{count}", rates[len(rates) // 2], "1/s", ">=0.1")
    figure(f"simulator-memory-of-{count}", sum(held) / max(len(held), 1) / 1e6, "MB", "<=1600", quick=True)
    figure(f"simulator-errors-of-{count}", len(crowd.errors), "errors", "<=0", quick=True)


def main() -> int:
    """Prints the figures; returns 1 where one misses its target."""
    quick = (
        flags(__doc__.splitlines()[0], "3 seconds instead of 10 (an episode has 15), and 4 people").parse_args().quick
    )
    seconds, count = (3.0, 4) if quick else (10.0, PEOPLE)
    if find() is None:
        raise SystemExit("no Chromium is installed: apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="vlalab-bench-") as name, contextlib.ExitStack() as stack:
        folder, libero = Path(name), python("libero")
        policy = stack.enter_context(program(folder / "policy.txt", libero, "services.libero.policies", "random"))
        words = ("services.libero.live", "--policies", f"random={policy}", "--sessions", str(PEOPLE + 1))
        simulator = stack.enter_context(program(folder / "simulator.txt", libero, *words, TMPDIR=str(folder)))
        words = ("services.ui", "--policy-url", policy, "--services", f"simulator={simulator}")
        url = stack.enter_context(program(folder / "ui.txt", python("ui"), *words, said="the page is at"))
        with Browser() as shown:
            found = sorted(ages(shown, url, seconds))
        people(url, folder, count, seconds)
    print(f"{len(found)} pictures in {seconds:g} s, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    figure("simulator-frames", len(found) / seconds, "1/s", ">=9")
    figure("simulator-age-median", found[len(found) // 2], "ms", "<=50", quick=True)
    return 0 if figure("simulator-age-p95", found[int(len(found) * 0.95)], "ms", "<=100", quick=True) else 1


if __name__ == "__main__":
    raise SystemExit(main())
