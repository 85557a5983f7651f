"""The main program of a model's service: flags, and checks before the port opens."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import tyro

from vla_common import entrypoint
from vla_common.serving import Serving
from vla_contract import Policy, serve
from vla_modelkit.settings import from_environment

Settings = TypeVar("Settings", bound=Serving)


def main(
    name: str,
    kind: type[Settings],
    prepare: Callable[[Settings], tuple[Callable[[], Policy], Mapping[str, Any]]],
    reserved: Collection[str] | None = None,
) -> None:
    """Serve model `name` until a signal stops it; flags have defaults from VLALAB_<NAME>_<FLAG>.

    prepare: settings -> (function that loads the policy, options of `serve`), fast and without torch, so that errors
    appear before the web server is loaded. reserved: see `from_environment`. $VLALAB_TOKEN: the token of clients.
    """
    entrypoint.run(_main, name, kind, prepare, reserved)


def _main(name: str, kind: type[Settings], prepare: Callable, reserved: Collection[str] | None) -> None:
    default = from_environment(kind, f"VLALAB_{name.upper()}_", reserved=reserved)
    settings = tyro.cli(
        kind, prog=f"python -m {getattr(sys.modules['__main__'].__spec__, 'parent', name)}", default=default
    )
    load, options = prepare(settings)
    token = os.environ.get("VLALAB_TOKEN") or None
    serve(load, settings.host, settings.port, token=token, **options)
