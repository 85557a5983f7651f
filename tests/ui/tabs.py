"""One browser for many tests. Each has tabs of its own, which end with it, as do cookies and what was seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.browser import Browser


class Tabs(Browser):
    """A browser whose pages are those that the present test has opened.

    What it loaded before is kept as browsers keep it, so the parts of a page at the same address are fetched once.
    """

    def __init__(self):
        self._mine: dict[str, str] = {}  # sessions of the present test's pages -> what DevTools calls those
        super().__init__()
        self._mine.clear()  # the first page stays: a browser without any would end

    @contextmanager
    def entered(self, width: int = 1280, height: int = 900) -> Iterator[Tabs]:
        """Gives this browser with one new page of that size; the pages opened meanwhile are closed at the end."""
        self.tab(width, height)
        try:
            yield self
        finally:
            self._leave()

    def tab(self, width: int = 1280, height: int = 900) -> None:
        super().tab(width, height)
        self._mine[self._session] = self.do("Target.getTargetInfo")["targetInfo"]["targetId"]

    def _leave(self) -> None:
        self.do("Network.clearBrowserCookies")
        self._session = None
        while self._mine:
            self._call("Target.closeTarget", {"targetId": self._mine.popitem()[1]})
        for seen in (self.requests, self.errors, self.complaints):
            seen.clear()

    def _note(self, event: dict) -> None:
        """Notes what concerns the pages of this test; those of the one before may still be ending."""
        if event.get("sessionId") in {*self._mine, self._session}:
            super()._note(event)
