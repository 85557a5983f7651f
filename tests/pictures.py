"""The pictures of README.md and docs/ui.md, from a real lab: `images/ui/.venv/bin/python -m tests.pictures`.

It makes a volume of its own, evaluates, records and serves there by `./lab` on free ports, looks at the pages in
Chromium, and takes all of it away again. That needs the environments ui, libero and openvla, and five minutes. It
writes to docs/img, or to the directory named.
`--only NAME,…` takes some of them; `--look` adds each page 400 and 1920 pixels wide, light and dark, and in Korean.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from tests.browser import Browser
from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[1]
SERVICES = ("ui", "simulator", "openvla", "oracle", "random")
TOKEN = "of-the-pictures"
COLOURS = 128  # of a picture: a page has few, and so it takes a third of the bytes
# Some fail at this limit, so that there is something to compare.
FEW = ("--tasks", "0-4", "--trials", "2", "--max-steps", "110", "--runtime", "local")
STRIP = """
(async () => {
  const shown = document.createElement("div");
  shown.style.cssText = "position:absolute;inset:0;background:#fff;z-index:9;font:16px sans-serif;color:#222";
  for (const [words, source] of FILMS) {
    const film = Object.assign(document.createElement("video"), { src: source, muted: true });
    await new Promise((done) => { film.onloadeddata = done; });
    const row = document.createElement("div"), title = document.createElement("p");
    title.textContent = `“${words}”`;
    title.style.cssText = "margin:6px 2px 4px";
    row.style.cssText = "display:flex;gap:4px";
    for (const share of [0, 0.25, 0.5, 0.75, 0.98]) {
      await new Promise((done) => { film.onseeked = done; film.currentTime = share * film.duration + 0.001; });
      const canvas = Object.assign(document.createElement("canvas"), { width: 256, height: 256 });
      canvas.getContext("2d").drawImage(film, 0, 0, 256, 256);
      row.append(canvas);
    }
    shown.append(title, row);
  }
  document.body.replaceChildren(shown);
  return true;
})()
"""


class Lab:
    """A lab for the pictures alone: `./lab` with a volume, a state and ports of its own."""

    def __init__(self, directory: Path):
        ports = dict(zip(SERVICES, free_ports(len(SERVICES)), strict=True))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLALAB_", "PYTHONPATH"))}
        own = {"VLALAB_STATE": directory / "state", "VLALAB_VOLUME": directory / "volume", "VLALAB_TOKEN": TOKEN}
        own |= {"VLALAB_NAME": "vla-lab"}
        own |= {f"VLALAB_{name.upper()}_PORT": port for name, port in ports.items()}
        self.environment = {**kept, **{name: str(value) for name, value in own.items()}}
        self.url = f"http://127.0.0.1:{ports['ui']}"
        (directory / "volume").mkdir()

    def __call__(self, *words: str) -> None:
        """Runs one task of the lab."""
        print(f"./lab {' '.join(words)}", flush=True)
        subprocess.run([ROOT / "lab", *words], env=self.environment, check=True, stdout=subprocess.DEVNULL)

    def fill(self) -> None:
        """Makes what there is to look at, and starts the services."""
        self("checkpoint", "openvla", "--tiny")
        self("eval", "libero_goal", "--policy", "oracle", "--video", "all", *FEW)
        self("eval", "libero_goal", "--policy", "random", "--video", "all", *FEW)
        few = ("--tasks", "3,8", "--trials", "1")
        self("eval", "libero_goal", "--policy", "oracle", "--video", "all", *few, "--runtime", "local")
        self(
            "record", "libero_goal", "--tasks", "7-8", "--episodes", "4", "--name", "goal-oracle", "--runtime", "local"
        )
        self("dataset", "goal-oracle", "--format", "lerobot", "--size", "128", "--runtime", "local")
        self("dataset", "goal-oracle", "--check", "--runtime", "local")
        self("up", "ui", "oracle", "random", "--runtime", "local")


# --- what is looked at: each opens its page, and waits until it stands ------------------------------------------


def ask(shown: Browser, url: str) -> None:
    """An example, and the action that a policy answers."""
    shown.go(f"{url}/ask/")
    shown.until("!!document.querySelector('#policy .good') && !document.querySelector('#ask').disabled")
    shown.click("#examples button[title='put the bowl on the plate']")
    shown.until("!!document.querySelector('#picture img')?.naturalWidth")
    shown.click("#ask")
    shown.until("document.querySelectorAll('#numbers .value').length == 7")


def simulator(shown: Browser, url: str) -> None:
    """The oracle in the middle of an episode."""
    shown.go(f"{url}/simulator")
    for name, value in (("suite", "libero_goal"), ("task", "3"), ("policy", "oracle")):
        field = f"document.querySelector('[name={name}]')"
        shown.until(f"[...{field}.options].some((one) => one.value === {value!r})")
        shown.js(f"{field}.value = {value!r}; {field}.dispatchEvent(new Event('change', {{bubbles: true}}))")
    shown.js("document.querySelector('#speed').value = '0'")
    shown.click("#opening button")
    shown.until("Number(document.querySelector('#at-step').textContent) > 90", 300.0)
    shown.click("#play")
    shown.until("document.querySelector('#state').dataset.state == 'paused'")
    shown.js("window.scrollTo(0, 0)")


def plain(path: str, ready: str) -> Callable[[Browser, str], None]:
    """Returns what opens a page and waits until something is on it."""

    def look(shown: Browser, url: str) -> None:
        shown.go(f"{url}{path}")
        shown.until(f"location.pathname == {path.partition('?')[0]!r} && document.readyState == 'complete' && {ready}")
        shown.until("[...document.images].every((one) => one.complete)")

    return look


VIDEOS = "[...document.querySelectorAll('video')].every((one) => one.readyState >= 1 || one.poster)"
LOOKS: dict[str, tuple[int, Callable[[Browser, str], None]]] = {  # the window's height, and the page
    "ui": (1330, ask),
    "simulator": (1000, simulator),
    "runs": (980, plain("/runs/libero_goal-oracle-1", VIDEOS)),
    "compare": (1000, plain("/runs/compare?a=libero_goal-oracle-1&b=libero_goal-random-1", VIDEOS)),
    "data": (1000, plain("/data/goal-oracle/0", "document.querySelectorAll('.curves polyline').length > 7")),
    "services": (1000, plain("/services", "document.querySelectorAll('tr[data-service] button').length > 3")),
}


def strip(shown: Browser, url: str) -> None:
    """Two films of the oracle's as rows of five moments: the README's first picture."""
    shown.go(f"{url}/runs/libero_goal-oracle-2")
    shown.until("document.querySelectorAll('tr[data-task]').length == 2")
    name = "document.querySelector('tr[data-task=\"{}\"] th').textContent"
    videos = [[shown.js(name.format(task)), f"/runs/libero_goal-oracle-2/videos/{task:02d}-00.mp4"] for task in (3, 8)]
    shown.js(STRIP.replace("FILMS", str(videos)))


def take(shown: Browser, path: Path) -> None:
    """Writes what the window shows as a PNG of few colours."""
    shown.screenshot(path)
    with Image.open(path) as image:
        few = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    few.save(buffer, "PNG", optimize=True)
    path.write_bytes(buffer.getvalue())
    print(f"{path}: {path.stat().st_size / 1e3:.0f} kB", flush=True)


def log_in(shown: Browser, url: str) -> None:
    """Logs in, as a person does."""
    shown.go(f"{url}/?language=en")
    shown.until("!!document.querySelector('input[type=password]')")
    shown.type("input[type=password]", TOKEN)
    shown.press("Enter")
    shown.until("!!document.querySelector('#home #last')")


def everywhere(shown: Browser, name: str, directory: Path) -> None:
    """Writes a page that stands narrow and wide, light and dark, and in Korean."""
    for language in ("en", "ko"):
        if language == "ko":
            shown.js("document.querySelector('a[lang=ko]').click()")
            shown.until("!!document.querySelector('.vlab-side b[lang=ko]') && document.readyState == 'complete'")
        for width, scheme in ((400, "light"), (400, "dark"), (1920, "light"), (1920, "dark")):
            shown.resize(width, 1600 if width < 600 else 1000), shown.scheme(scheme)
            time.sleep(1.0)
            take(shown, directory / f"{name}-{language}-{width}-{scheme}.png")
    shown.js("document.querySelector('a[lang=en]').click()")
    shown.until("document.readyState == 'complete' && !!document.querySelector('a[lang=ko]')")


def main() -> None:
    """Makes the lab, looks at it, and ends it."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("directory", nargs="?", type=Path, default=ROOT / "docs/img")
    asked.add_argument("--only", default=",".join(("rollout", *LOOKS)))
    asked.add_argument("--look", action="store_true")
    given = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="vlalab-pictures-") as name, Browser() as shown:
        lab = Lab(Path(name))
        try:
            lab.fill()
            log_in(shown, lab.url)
            for one in given.only.split(","):
                height, look = (578, strip) if one == "rollout" else LOOKS[one]
                shown.scheme("light"), shown.resize(1296 if one == "rollout" else 1280, height)
                look(shown, lab.url)
                time.sleep(1.0)  # what fades in has done so
                take(shown, given.directory / f"{one}.png")
                if given.look and one in LOOKS:
                    everywhere(shown, one, given.directory)
        finally:
            lab("down")


if __name__ == "__main__":
    main()
