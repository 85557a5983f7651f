"""A LeRobot data set limited to its numbers: a few bytes of parquet may decode to gigabytes of other data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from vla_datasets import tables
from vla_datasets.lerobot import LeRobotDataset

MAX_VALUES = 2_000_000  # of an episode's rows


class NumericDataset(LeRobotDataset):
    """Skips images and texts in rows, opens no video, and caches no episode."""

    def columns(self, episode_index: int) -> dict[str, np.ndarray]:
        """Return an array [T, …] for each column of numbers. Raises DatasetError for more than MAX_VALUES."""
        path, first = self.data_path(episode_index), self.first_row(episode_index)
        schema = tables.read(path, self.opener, rows=(0, 0)).schema
        numbers = {field.name for field in schema if _holds_numbers(field.type)}
        others = [name for name in schema.names if name not in numbers]
        # pyarrow takes a name for all columns below it: `a` would bring the column `a.b`, too
        numbers = [name for name in numbers if not any(other.startswith(f"{name}.") for other in others)]
        span = (first, first + self.episodes[episode_index].length) if self.is_v3 else None
        return tables.columns(tables.read(path, self.opener, numbers, span, MAX_VALUES), path)

    def _check_clips(self, keys: Sequence[str]) -> None:
        pass


def _holds_numbers(kind: pa.DataType) -> bool:
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
