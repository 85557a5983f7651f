"""Builds the images under test through `./lab build`, those that share layers in one go."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.docker.beside import Beside
from tests.docker.hidden import Secrets
from tests.docker.lab import Lab
from vlalab.description import variants
from vlalab.engine import building, docker, images
from vlalab.testing import parts

# Built at one time, so that one waits for its downloads while another one computes. Not all: the first ones' cache goes
# before the others come. Those take most of the disk, and nothing but their own tests needs them: they come when the
# services are done with and their images gone. Wheels of CUDA and torch come once for all.
GROUPS = (("libero", "metaworld", "ui", "openvla"), ("gr00t", "ws_mdl", "hf"))
NIGHTLY = (*parts.NIGHTLY_IMAGES, "openvla-cu130")
KEPT = "libero"  # small, and its own tests may go on


@dataclass
class Builds:
    """Builds images, each once."""

    lab: Lab
    private: bool  # an engine of the tests' own: what builds leave behind is removed
    say: Callable[[str], None]
    secrets: Secrets
    beside: Beside  # told of each image that is there, and waited for before one goes
    bytes: dict[str, int] = field(default_factory=dict)
    layers: dict[str, list[str]] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    commits: dict[str, str] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    def get(self, name: str) -> str:
        """Returns the reference of an image, built at the first call. What failed once is not tried again."""
        if name in self.failed:
            pytest.fail(f"the image of {name} could not be built: see the first test that wanted it", pytrace=False)
        if name not in self.bytes:
            group = next((names for names in GROUPS if name in names), (name,))
            if group not in GROUPS[:-1]:
                self._make_room()
            self.failed.update(group)
            try:
                self._build(group)
            finally:
                self._prune()
            self.failed.difference_update(group)
        return images.reference(name, self.lab.name)

    def _build(self, group: tuple[str, ...]) -> None:
        flags = [*self.flags(group), *self.secrets.flags(), "--progress", "plain"]
        self.say(f"building {', '.join(group)}")
        started = time.monotonic()
        commit = building.commit()
        names = " ".join(map(variants.format_flags, group)).split()
        words = self.lab("build", *names, *flags, timeout_s=3000, hear=Exports(self.beside.begin)).text
        for name in group:
            record = self.lab.image(name)
            self.bytes[name], self.layers[name] = record["Size"], record["RootFS"]["Layers"]
            self.words[name], self.commits[name] = words, commit
            self.beside.begin(name)
        self.say(f"built {', '.join(group)} in {time.monotonic() - started:.0f} s")

    def flags(self, group: tuple[str, ...]) -> list[str]:
        """Returns the flags of a build. flash-attn is on no package index and may be out of reach."""
        return ["--flash-attn", "none"] if any("FLASH_ATTN" in images.arguments(name) for name in group) else []

    def remove(self, name: str) -> None:
        """Removes an image."""
        docker.run(["image", "rm", "--force", images.reference(name, self.lab.name)], check=False)

    def _make_room(self) -> None:
        """Removes the images that services needed, when their own tests are done too."""
        for name in self.bytes.keys() - {KEPT}:
            self.beside.wait(name)
            self.remove(name)

    def _prune(self) -> None:
        """Removes what the build leaves."""
        if self.private:
            docker.run(["builder", "prune", "--all", "--force"], check=False)


@dataclass
class Exports:
    """Called with each line of a build, calls `done` with the name of each image that has been exported."""

    done: Callable[[str], None]
    names: dict[str, str] = field(default_factory=dict)  # step → the image that it exports

    def __call__(self, line: str) -> None:
        if named := re.match(r"#(\d+) naming to \S*/([\w-]+):", line):
            self.names[named[1]] = named[2]
        elif (ended := re.match(r"#(\d+) DONE", line)) and ended[1] in self.names:
            self.done(self.names.pop(ended[1]))
