"""A machine that was written down: what checks are asked about where its hardware is not at hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vlalab.doctor.machine import RUN_S, ClockResponse, Disk, Machine, Output


@dataclass(frozen=True)
class Recorded(Machine):
    """A machine as texts that were written down; what it does not say is not there."""

    files: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # command line → code, out, err
    programs: Mapping[str, str] = field(default_factory=dict)  # beside those of the commands → their paths
    disks: Mapping[str, list] = field(default_factory=dict)  # path → total, free, share of free inodes
    nvml: Mapping[str, Any] = field(default_factory=lambda: {"error": "LibraryNotFound"})
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # host → a Response
    variables: Mapping[str, str] = field(default_factory=dict)
    time: float = 1_800_000_000.0

    def which(self, program: str) -> str | None:
        if program in self.programs:
            return self.programs[program]
        return f"/usr/bin/{program}" if any(line.split()[0] == program for line in self.commands) else None

    def run(self, *words: str, limit_s: float = RUN_S) -> Output:
        if self.which(words[0]) is None:
            return Output(127)
        said = self.commands.get(" ".join(words), {"code": 1, "err": "not recorded"})
        if said.get("hangs"):
            raise TimeoutError(f"{words[0]} did not answer within {limit_s:g} s")
        out = said.get("out", "")
        return Output(said.get("code", 0), out if isinstance(out, str) else json.dumps(out), said.get("err", ""))

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def names(self, directory: str) -> list[str]:
        below = [
            path[len(directory.rstrip("/")) + 1 :]
            for path in self.files
            if path.startswith(f"{directory.rstrip('/')}/")
        ]
        return sorted({path.split("/")[0] for path in below})

    def disk(self, path: str) -> Disk | None:
        above = [disk for disk in self.disks if Path(path).is_relative_to(disk)]
        return Disk(*self.disks[max(above, key=len)]) if above else None

    def gpus(self) -> dict[str, Any]:
        return dict(self.nvml)

    def fetch(self, url: str) -> ClockResponse:
        return ClockResponse(**self.answers.get(urlsplit(url).hostname or "", {"error": "Name or service not known"}))

    def now(self) -> float:
        return self.time
