"""What images/bake.json says about each image: its build arguments, and which environments have one.

BuildKit's own tool reads the same file (`docker buildx bake --file images/bake.json`), so that a build by hand and
`./lab build` give the same image.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping

from vlalab.host import paths

FILE = "images/bake.json"


@functools.cache
def _document() -> dict:
    return json.loads((paths.ROOT / FILE).read_text())


def environments() -> list[str]:
    """Returns the environments that have an image."""
    return sorted(_document()["group"]["default"]["targets"])


def arguments(name: str) -> Mapping[str, str]:
    """Returns the build arguments of an environment's image with their defaults."""
    targets = _document()["target"]
    inherited = (targets[parent]["args"] for parent in targets[name]["inherits"])
    return functools.reduce(lambda known, more: {**known, **more}, [*inherited, targets[name]["args"]], {})
