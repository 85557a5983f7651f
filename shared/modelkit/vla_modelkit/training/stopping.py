"""Ctrl-C and SIGTERM as a flag that a training loop checks between steps."""

from __future__ import annotations

import signal
import threading


class StopSignal:
    """Inside `with StopSignal() as stop:` the first signal sets `stop.requested`, a second one interrupts at once."""

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> StopSignal:
        def note(number: int, _: object) -> None:
            if self.requested:
                raise KeyboardInterrupt
            self.requested = True

        self.before = {}
        if threading.current_thread() is threading.main_thread():  # Python allows handlers only there
            self.before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
