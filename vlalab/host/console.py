"""Messages of the host tool, one line each, on stderr; stdout is for results."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from vlalab.host.shared_code import entrypoint

MAX_LISTED = 30  # valid names in one message


class LabError(Exception):
    """An error that the user can fix. The text names the value, what was expected and what to type.

    The command line prints it without a traceback and exits with 1.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text, self.message = text, f"lab: {text}"


def unknown(kind: str, value: str, choices: Iterable[str], aliases: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the message for an unknown name, with the closest valid name and some or all of the valid ones.

    aliases: alternative names from papers → the valid name.
    """
    names = list(choices)
    plain = re.sub(r"[\s-]+", "_", value.strip().lower())
    by_plain = {name.lower().replace("-", "_"): name for name in names}
    # Equal except for case and "-", with that suffix, or similar.
    suffixed = [name for name in by_plain if plain and name.endswith(f"_{plain}")]
    close = [plain] if plain in by_plain else suffixed or difflib.get_close_matches(plain, by_plain, 1, 0.4)
    match = aliases.get(value.lower()) or (by_plain[close[0]] if close else None)
    hint = f"; did you mean '{match}'?" if match else "."
    if len(names) > MAX_LISTED:
        names = [*names[:5], f"and {len(names) - 5} more"]
    problem = f"invalid {kind} '{value}'" if kind.startswith("--") else f"{kind} '{value}' not found"
    return f"{problem}{hint} Known: {', '.join(names)}"


def check_choices(
    kind: str, names: Iterable[str], choices: Iterable[str], aliases: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raise LabError for the first of `names` that is not in `known`."""
    for name in names:
        if name not in choices:
            raise LabError(unknown(kind, name, choices, aliases))


def log_info(text: str) -> None:
    """Print a line of progress."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


def confirm(question: str) -> bool:
    """Ask for confirmation; return whether the answer is yes. Enter means no."""
    try:
        return input(f"{entrypoint.plain(question)} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


class Status:
    """A line that is updated in place on a terminal; no output elsewhere."""

    def __init__(self, title: str) -> None:
        self.title, self.started, self.detail = title, time.monotonic(), ""
        self.live = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"  # it would show the codes

    def update(self, detail: str | None = None) -> None:
        """Redraw the line: title, elapsed seconds, detail; title and detail share what the seconds leave."""
        self.detail = self.detail if detail is None else detail
        if not self.live:
            return
        width = shutil.get_terminal_size().columns - 1
        title, detail = f"lab: {entrypoint.plain(self.title)}", entrypoint.plain(self.detail)
        number = f" … {time.monotonic() - self.started:.0f} s"
        room = max(0, width - len(number) - 2)
        detail = detail[: max(room // 2, room - len(title))]
        text = title[: room - len(detail)] + number + (f"  {detail}" if detail else "")
        print("\r\033[K" + text[:width], end="", file=entrypoint.unfiltered(sys.stderr), flush=True)


@contextmanager
def status(title: str) -> Iterator[Status]:
    """Print that a step starts and, if it succeeds, how long it took; a terminal shows the seconds as they pass."""
    line, ended = Status(title), threading.Event()

    def tick() -> None:
        while not ended.wait(1.0):
            line.update()

    ticker = threading.Thread(target=tick, daemon=True)
    if line.live:
        line.update()
        ticker.start()
    else:
        log_info(f"{title} …")
    try:
        yield line
    finally:
        ended.set()
        if line.live:
            ticker.join()
            print("\r\033[K", end="", file=entrypoint.unfiltered(sys.stderr), flush=True)
    log_info(f"{title}: done in {time.monotonic() - line.started:.0f} s")
