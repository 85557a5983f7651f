"""Settings of a program from its variables, whatever their type: what flags then take as their defaults."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from vla_contract.protocol.errors import did_you_mean

Kind = TypeVar("Kind")
EXPECTED = {int: "a whole number", float: "a number"}
TRUTH = {"0": False, "1": True, "false": False, "true": True}


def from_environment(
    kind: type[Kind], prefix: str, environ: Mapping[str, str] = os.environ, others: Collection[str] | None = None
) -> Kind:
    """Returns settings of dataclass `kind` with what variables `prefix` + FIELD say; empty ones count as unset.

    others: names with this prefix that are read elsewhere; where they are given, an unknown one is refused. Raises
    ValueError naming a variable whose value does not fit.
    """
    names = {prefix + one.name.upper(): one.name for one in fields(kind)}
    given = {name: text for name, text in environ.items() if text and name.startswith(prefix)}
    if others is not None:
        for name in given.keys() - names.keys() - {prefix + other for other in others}:
            raise ValueError(f"unknown variable {name}{did_you_mean(name, names)}")
    hints = get_type_hints(kind)
    given = {name: text for name, text in given.items() if name in names}
    values = {names[name]: _read(name, text, hints[names[name]]) for name, text in given.items()}
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{error} (set: {', '.join(f'{name}={text}' for name, text in given.items())})") from None


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
