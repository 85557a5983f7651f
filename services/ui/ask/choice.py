"""Which policies the page can ask: the one that it was started for, and others of the lab while they answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from services.ui.ask.link import PolicyLink


class Choice:
    """Policies by name; the first is the one that is asked where none is chosen and it answers."""

    def __init__(self, first: PolicyLink, others: Mapping[str, PolicyLink] | None = None):
        named = {name: link for name, link in (others or {}).items() if link.url != first.url}
        name = next((name for name, link in (others or {}).items() if link.url == first.url), first.url)
        self.links = {name: first, **named}

    def up(self) -> list[str]:
        """Returns the names of those that answer and that the page can ask."""
        with ThreadPoolExecutor(len(self.links)) as pool:
            statuses = pool.map(PolicyLink.status, self.links.values())
            return [name for name, status in zip(self.links, statuses, strict=True) if status.usable]

    def chosen(self, names: Sequence[str] | None) -> dict[str, PolicyLink]:
        """Returns the policies of those names; where it is none, the first one, or another that is up in its place."""
        found = {name: self.links[name] for name in names or () if name in self.links}
        if found:
            return found
        name, first = next(iter(self.links.items()))
        if not first.status().usable and (up := self.up()):
            name = up[0]
        return {name: self.links[name]}
