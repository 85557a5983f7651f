"""A headless Chromium, driven over a pipe with the DevTools protocol: no driver, no WebSocket, nothing downloaded."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import netless

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--force-prefers-reduced-motion", "--remote-debugging-pipe",
)  # fmt: skip
LEFT = ("target navigated or closed", "Execution context was destroyed", "Cannot find default execution context")
KEYS = {  # by what DevTools calls its code: key, number, and the text that it types
    "Tab": ("Tab", 9, ""), "Enter": ("Enter", 13, "\r"), "Space": (" ", 32, " "), "Escape": ("Escape", 27, ""),
    "End": ("End", 35, ""), "Home": ("Home", 36, ""), "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowUp": ("ArrowUp", 38, ""), "ArrowRight": ("ArrowRight", 39, ""), "ArrowDown": ("ArrowDown", 40, ""),
    "KeyN": ("n", 78, "n"), "KeyP": ("p", 80, "p"), "KeyQ": ("q", 81, "q"),
}  # fmt: skip


def find() -> str | None:
    """Returns the browser's path, or None where none is installed.

    Ubuntu's package chromium-browser holds a script that only asks for a snap: that is none.
    """
    found = filter(None, map(shutil.which, NAMES))
    return next((path for path in found if b"chromium snap" not in Path(path).read_bytes()[:4096]), None)


class Browser:
    """One browser, with one page at first. `requests` holds every address that the page asked for, `errors` what its
    scripts failed with, `complaints` what else the console shows as an error: a refused script, a missing file.
    """

    def __init__(self, width: int = 1280, height: int = 900):
        self._profile = tempfile.TemporaryDirectory(prefix="vlalab-chromium-", ignore_cleanup_errors=True)
        self._number, self._rest, self.requests, self.errors, self.complaints = 0, b"", [], [], []
        self._paused: list[str] = []
        self._pid, self._to, self._from = _start([f"--user-data-dir={self._profile.name}"])
        self.tab(width, height)

    _session: str | None = None

    def tab(self, width: int = 1280, height: int = 900) -> None:
        """Opens another tab; what follows is about this one. Those before stay open."""
        self._session = None
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "DOM", "Log"):
            self.do(f"{domain}.enable")
        self.resize(width, height)

    def do(self, method: str, **parameters) -> dict:
        """Returns the result of a command of the DevTools protocol to the page."""
        return self._call(method, parameters)

    def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        """Gives the page a window of that size; narrow ones are a phone's."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.do("Emulation.setDeviceMetricsOverride", **size)

    def scheme(self, name: str) -> None:
        """Has the page believe that the person prefers that colour scheme: "light" or "dark"."""
        self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def go(self, url: str) -> None:
        """Opens an address."""
        self.do("Page.navigate", url=url)

    @contextmanager
    def holding(self, address: str) -> Iterator[None]:
        """Keeps from the page what it asks for at such addresses ("*/lab.js*") until the block ends: a slow machine."""
        self.do("Network.setCacheDisabled", cacheDisabled=True)  # what is taken from there is asked of nobody
        self._paused.clear()
        self.do("Fetch.enable", patterns=[{"urlPattern": address}])
        try:
            yield
        finally:  # each by its number: one that the browser pauses while the domain is disabled stays paused
            end = time.monotonic() + 30
            while not self._paused and time.monotonic() < end:
                self.do("Runtime.evaluate", expression="0")  # reads what has happened
            for number in self._paused:
                self.do("Fetch.continueRequest", requestId=number)
            self.do("Fetch.disable")
            self.do("Network.setCacheDisabled", cacheDisabled=False)

    def js(self, expression: str):
        """Returns the value of a JavaScript expression in the page."""
        given = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.do("Runtime.evaluate", **given)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, expression: str, timeout_s: float = 90.0):
        """Returns an expression's value as soon as it is true. Raises TimeoutError with what the page shows.

        An expression that fails is not true yet: a page that is being loaded has no body. Nor is one that the browser
        gives up because it leaves for another page meanwhile.
        """
        expression = f"(() => {{ try {{ return {expression} }} catch {{ return false }} }})()"
        end = time.monotonic() + timeout_s
        while not (value := self._staying(expression)):
            if time.monotonic() > end:
                shown = self._staying("document.body?.innerText.slice(0, 2000)")
                raise TimeoutError(f"{expression} did not become true in {timeout_s:g} s; the page shows:\n{shown}")
            time.sleep(0.05)
        return value

    def _staying(self, expression: str):
        """Returns an expression's value, or None where the page was left before it had one."""
        try:
            return self.js(expression)
        except RuntimeError as error:
            if not any(words in str(error) for words in LEFT):
                raise
            return None

    def click(self, selector: str) -> None:
        """Clicks an element where it is, as a hand would, as soon as it can be seen and used, and holds still."""
        box = f"document.querySelector({selector!r})"
        self.until(f"{box}.getClientRects().length > 0 && !{box}.matches(':disabled')")
        self.js(f"{box}.scrollIntoView({{block: 'center'}})")
        at, before = self._middle(box), None
        while at != before:
            time.sleep(0.1)
            at, before = self._middle(box), at
        for kind in ("mousePressed", "mouseReleased"):
            self.do("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)

    def _middle(self, box: str) -> list[float]:
        return self.js(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({box}.getBoundingClientRect())")

    def type(self, selector: str, text: str) -> None:
        """Clicks into a field and types."""
        self.click(selector)
        self.do("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Presses and lets go of a key ("Tab", "Enter", "Space", "ArrowRight" …), for whatever has the focus."""
        name, number, text = KEYS[key]
        given = {"key": name, "code": key, "windowsVirtualKeyCode": number}
        self.do("Input.dispatchKeyEvent", type="keyDown", text=text, **given)
        self.do("Input.dispatchKeyEvent", type="keyUp", **given)

    def upload(self, selector: str, path: Path) -> None:
        """Gives a file input a file."""
        self.until(f"!!document.querySelector({selector!r})")
        # An object, not a node's number: Chrome forgets all numbers when a page that is being loaded is complete.
        found = self.do("Runtime.evaluate", expression=f"document.querySelector({selector!r})")
        self.do("DOM.setFileInputFiles", objectId=found["result"]["objectId"], files=[str(path)])

    def screenshot(self, path: Path, full: bool = False) -> None:
        """Writes what the window shows, or the whole page, as PNG."""
        data = self.do("Page.captureScreenshot", format="png", captureBeyondViewport=full)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """Ends the browser."""
        os.close(self._to)
        try:
            os.killpg(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self._from)
        self._profile.cleanup()

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def _call(self, method: str, parameters: dict, timeout_s: float = 30.0) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + timeout_s
        while (answer := self._next(end, method)).get("id") != self._number:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _note(self, event: dict) -> None:
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])
        elif event.get("method") == "Fetch.requestPaused":
            self._paused.append(event["params"]["requestId"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(event["params"]["exceptionDetails"])
        elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            entry = event["params"]["entry"]
            self.complaints.append(f"{entry['text']} {entry.get('url', '')}")
        elif event.get("method") == "Runtime.consoleAPICalled" and event["params"]["type"] == "error":
            self.complaints.append(str(event["params"]["args"]))

    def _next(self, end: float, method: str) -> dict:
        while b"\0" not in self._rest:
            if not select.select([self._from], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"the browser did not answer {method}")
            data = os.read(self._from, 1 << 16)
            if not data:
                raise RuntimeError(f"the browser ended before it answered {method}")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


def _start(flags: list[str]) -> tuple[int, int, int]:
    """Returns the browser's process id, where to write commands, and where to read answers: it has them as 3 and 4."""
    theirs_in, to = os.pipe()
    came, theirs_out = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in (theirs_in, theirs_out)]
    actions = [(os.POSIX_SPAWN_OPEN, n, os.devnull, os.O_RDWR, 0) for n in (0, 1, 2)]
    actions += [(os.POSIX_SPAWN_DUP2, end, n) for n, end in zip((3, 4), high, strict=True)]
    command = [sys.executable, "-I", "-S", netless.__file__, find(), *FLAGS, *flags]
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=actions, setpgroup=0)
    for end in (theirs_in, theirs_out, *high):
        os.close(end)
    return pid, to, came
