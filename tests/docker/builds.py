"""Builds the images under test through `./lab build`, each once, and keeps what that took."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.docker.hidden import Secrets
from tests.docker.lab import Lab
from vlalab import building, docker, images


@dataclass
class Builds:
    """Builds images, each once, and keeps what they took."""

    lab: Lab
    private: bool  # an engine of the tests' own: what builds leave behind is removed
    say: Callable[[str], None]
    secrets: Secrets
    seconds: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    commits: dict[str, str] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    def get(self, name: str) -> str:
        """Returns the reference of an image, built at the first call. What failed once is not tried again."""
        if name in self.failed:
            pytest.fail(f"the image of {name} could not be built: see the first test that wanted it", pytrace=False)
        if name not in self.seconds:
            self.failed.add(name)
            try:
                self._build(name)
            finally:
                self._prune()
            self.failed.remove(name)
        return images.reference(name, self.lab.name)

    def _build(self, name: str) -> None:
        flags = [*self.flags(name), *self.secrets.flags(), "--progress", "plain"]
        self.say(f"building {name}")
        started = time.monotonic()
        self.commits[name] = building.commit()
        self.words[name] = self.lab("build", name, *flags, timeout_s=1500).text
        self.seconds[name] = time.monotonic() - started
        self.bytes[name] = self.lab.image(name)["Size"]
        self.say(f"built {name} in {self.seconds[name]:.0f} s: {self.bytes[name] / 1e9:.2f} GB")

    def flags(self, name: str) -> list[str]:
        """Returns the flags of a build. flash-attn and Isaac-GR00T are on no package index and may be out of reach."""
        text = (images.folder(name) / "Dockerfile").read_text()
        flags = ["--flash-attn", "none"] if "FLASH_ATTN" in building.declared(text) else []
        if (source := re.search(r"GR00T_URL=(\S+)", text)) and not answers(source[1]):
            self.say("Isaac-GR00T cannot be fetched here: its image is built up to it")
            flags += ["--gr00t-source", "none"]
        return flags

    def figures(self) -> list[str]:
        """Returns a line per image: what its build took, and its size."""
        return [
            f"image {name:<8} built in {seconds:4.0f} s, {self.bytes[name] / 1e9:5.2f} GB"
            for name, seconds in self.seconds.items()
        ]

    def remove(self, name: str) -> None:
        """Removes an image."""
        docker.run(["image", "rm", "--force", images.reference(name, self.lab.name)], check=False)

    def _prune(self) -> None:
        if self.private:
            docker.run(["builder", "prune", "--all", "--force"], check=False)


def answers(repository: str) -> bool:
    """Returns whether a git repository can be fetched from here."""
    command = ["git", "ls-remote", "--exit-code", repository, "HEAD"]
    try:
        asked = subprocess.run(command, capture_output=True, timeout=20, env={**os.environ, "GIT_TERMINAL_PROMPT": "0"})
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0
