"""The program of a service around a model: its flags, and what is checked before a port is opened."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import tyro

from vla_common import endings
from vla_common.serving import Serving
from vla_contract import Policy, serve
from vla_modelkit.settings import from_environment

Settings = TypeVar("Settings", bound=Serving)


def main(
    name: str,
    kind: type[Settings],
    prepare: Callable[[Settings], tuple[Callable[[], Policy], Mapping[str, Any]]],
    others: Collection[str] | None = None,
) -> None:
    """Serves model `name` until it is told to stop; flags have defaults from VLALAB_<NAME>_<FLAG>.

    prepare: settings -> (what loads the policy, options of `serve`), quickly and without torch: what is missing is said
    before a web server is loaded. others: see `from_environment`. $VLALAB_TOKEN is the token that clients must send.
    """
    endings.run(_main, name, kind, prepare, others)


def _main(name: str, kind: type[Settings], prepare: Callable, others: Collection[str] | None) -> None:
    default = from_environment(kind, f"VLALAB_{name.upper()}_", others=others)
    settings = tyro.cli(
        kind, prog=f"python -m {getattr(sys.modules['__main__'].__spec__, 'parent', name)}", default=default
    )
    load, options = prepare(settings)
    token = os.environ.get("VLALAB_TOKEN") or None
    serve(load, settings.host, settings.port, token=token, **options)
