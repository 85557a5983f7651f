"""What `--context` means: a class, a mix of classes, or every class in turn."""

from __future__ import annotations

import difflib

import torch
from torch import Tensor
from torch.nn import functional


def parse_context(text: str, classes: tuple[str, ...]) -> Tensor:
    """Returns the context vector, float32 [n_cfeat], of "hero", "hero+food" (both) or "hero:1,food:0.6" (a mix)."""
    context = torch.zeros(len(classes))
    for part in text.replace("+", ",").split(","):
        name, _, weight = part.strip().partition(":")
        if name not in classes:
            close = difflib.get_close_matches(name, classes, 1)
            hint = f"; did you mean '{close[0]}'?" if close else "."
            raise ValueError(f"context '{name}' not found{hint} Known: {', '.join(classes)}, all")
        try:
            context[classes.index(name)] = float(weight or 1)
        except ValueError as error:
            raise ValueError(
                f"context {part!r} has the weight {weight!r}; expected a number, as in {name}:0.6"
            ) from error
    return context


def names_for(text: str, classes: tuple[str, ...], count: int) -> list[str]:
    """Returns the name of each of the contexts of `contexts_for`: its class, or the mix as it was asked for."""
    if text != "all":
        return [text] * count
    return [classes[number] for number in contexts_for(text, classes, count).argmax(dim=1).tolist()]


def contexts_for(text: str, classes: tuple[str, ...], count: int) -> Tensor:
    """Returns contexts [count, n_cfeat]: one for all pictures, or with "all" the classes in turn, in even groups."""
    if text == "all":
        labels = torch.arange(count) * len(classes) // count
        return functional.one_hot(labels, len(classes)).float()
    return parse_context(text, classes).expand(count, -1)
