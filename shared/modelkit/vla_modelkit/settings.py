"""Read a program's settings from environment variables: the defaults of its flags."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from vla_contract.protocol.errors import did_you_mean

Kind = TypeVar("Kind")
EXPECTED = {int: "an integer", float: "a number"}
TRUTH = {"0": False, "1": True, "false": False, "true": True}


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
