"""Observations whose images are rendered when they are read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, ItemsView, ValuesView
from typing import Any

import numpy as np


class LazyImage:
    """An image that `draw` returns, once."""

    def __init__(self, draw: Callable[[], np.ndarray]):
        self._draw: Callable[[], np.ndarray] | None = draw
        self._image: np.ndarray | None = None

    def image(self) -> np.ndarray:
        """Return the image, uint8 [size, size, 3]. Raises RuntimeError after its environment was closed."""
        if self._draw is not None:
            self._image, self._draw = self._draw(), None
        assert self._image is not None
        return self._image


class LazyObservation(OrderedDict[str, Any]):
    """LIBERO's dictionary of observations, in which a `LazyImage` becomes its array when it is read.

    Read images before the environment is closed. A copy or a pickled one holds arrays.
    """

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if isinstance(value, LazyImage):
            value = value.image()
            self[key] = value
        return value

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401  this is `get`

    def pop(self, key: str, *default: Any) -> Any:
        if key in self:
            self[key]
        return super().pop(key, *default)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        return ValuesView(self)

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        return ItemsView(self)

    def copy(self) -> OrderedDict[str, Any]:  # type: ignore[override]
        return OrderedDict(self.items())

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> OrderedDict[str, Any]:
        return OrderedDict((key, np.array(value)) for key, value in self.items())

    def __reduce__(self) -> Any:
        return OrderedDict, (list(self.items()),)
