"""What the kit makes several of by one shape: products.yaml, as objects of the class that knows the shape."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml

Product = TypeVar("Product")


@cache
def _table() -> dict[str, list[dict[str, Any]]]:
    return yaml.safe_load(Path(__file__).with_name("products.yaml").read_text(encoding="utf-8"))


def of_kind(name: str, kind: type[Product]) -> tuple[Product, ...]:
    """Returns the products under `name` ("boxes") in their order, lists as tuples."""
    return tuple(kind(**{key: _as_tuple(value) for key, value in row.items()}) for row in _table()[name])


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value
