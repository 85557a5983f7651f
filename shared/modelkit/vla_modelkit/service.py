"""The main program of a model's service: flags, their defaults from variables, checks before the port opens."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import tyro

from vla_common import entrypoint
from vla_common.serving import Serving
from vla_contract import Policy, serve
from vla_contract.protocol.errors import did_you_mean

Settings = TypeVar("Settings", bound=Serving)
Kind = TypeVar("Kind")
EXPECTED = {int: "an integer", float: "a number"}
TRUTH = {"0": False, "1": True, "false": False, "true": True}


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
    program = f"python -m {getattr(sys.modules['__main__'].__spec__, 'parent', name)}"
    settings = tyro.cli(kind, prog=program, default=default)
    load, options = prepare(settings)
    serve(load, settings.host, settings.port, token=os.environ.get("VLALAB_TOKEN") or None, **options)


def from_environment(
    kind: type[Kind], prefix: str, environ: Mapping[str, str] = os.environ, reserved: Collection[str] | None = None
) -> Kind:
    """Return settings of dataclass `kind` from the variables `prefix` + FIELD; empty ones count as unset.

    reserved: further names with this prefix, read elsewhere; if not None, unknown variables are errors. Raises
    ValueError naming a variable with an invalid value.
    """
    names = {prefix + setting.name.upper(): setting.name for setting in fields(kind)}
    variables = {name: text for name, text in environ.items() if text and name.startswith(prefix)}
    if reserved is not None:
        for name in variables.keys() - names.keys() - {prefix + other for other in reserved}:
            raise ValueError(f"unknown variable {name}{did_you_mean(name, names)}")
    hints = get_type_hints(kind)
    variables = {name: text for name, text in variables.items() if name in names}
    values = {names[name]: _read(name, text, hints[names[name]]) for name, text in variables.items()}
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{error} (set: {', '.join(f'{name}={text}' for name, text in variables.items())})") from None


def _read(name: str, text: str, hint: Any) -> Any:
    if get_origin(hint) is Literal:
        if text not in get_args(hint):
            raise ValueError(f"{name}={text!r}{did_you_mean(text, get_args(hint))}")
        return text
    if hint is bool:
        if text.lower() not in TRUTH:
            raise ValueError(f"{name}={text!r}; expected 0 or 1")
        return TRUTH[text.lower()]
    hint = next((arg for arg in get_args(hint) if arg is not type(None)), hint)  # Path of Path | None
    try:
        return hint(text)
    except ValueError:
        raise ValueError(f"{name}={text!r}; expected {EXPECTED[hint]}") from None
