"""The result of an audit: suspicions, each with its evidence, and what could not be told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from vla_common.counts import plural
from vla_common.entrypoint import single_line

MAX_LISTED = 8  # episodes named in a line


@dataclass(frozen=True)
class Note:
    """A suspicion. where: the camera or column. episodes: those concerned; empty: the whole set."""

    kind: str
    where: str
    episodes: tuple[int, ...]
    evidence: str

    def __str__(self) -> str:
        listed = ", ".join(map(str, self.episodes[:MAX_LISTED]))
        more = f" and {len(self.episodes) - MAX_LISTED} more" if len(self.episodes) > MAX_LISTED else ""
        scope = f"episode{'s' * (len(self.episodes) > 1)} {listed}{more}" if self.episodes else "all episodes"
        return single_line(f"note: {scope}, {self.where}: {self.kind}? {self.evidence}")


@dataclass
class DatasetAudit:
    """Suspicions about a data set of which `episodes` were read. They are notes, never faults: look before repairing.

    cannot_tell: a sentence for each question that the data leaves open.
    """

    episodes: int = 0
    notes: list[Note] = field(default_factory=list)
    cannot_tell: list[str] = field(default_factory=list)

    def add(self, kind: str, where: str, episodes: Iterable[int], evidence: str) -> None:
        """Add a suspicion."""
        self.notes.append(Note(kind, where, tuple(int(index) for index in episodes), evidence))

    def lines(self) -> list[str]:
        """Return the result as text; the last line is its summary."""
        summary = plural(len(self.notes), "suspicion") if self.notes else "no suspicions"
        unknown = [single_line(f"cannot tell: {text}") for text in self.cannot_tell]
        return [*map(str, self.notes), *unknown, f"meaning of {plural(self.episodes, 'episode')}: {summary}"]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "episodes": self.episodes,
            "notes": [asdict(note) for note in self.notes],
            "cannot_tell": self.cannot_tell,
        }
