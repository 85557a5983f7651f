"""A LeRobot data set limited to its numbers: a few bytes of parquet may decode to gigabytes of other data."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from vla_datasets import tables
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.tables import pq

MAX_VALUES = 2_000_000  # of an episode's rows


class NumericDataset(LeRobotDataset):
    """Skips images and texts in rows, and caches no episode."""

    def columns(self, episode_index: int) -> dict[str, np.ndarray]:
        """Return an array [T, …] for each column of numbers. Raises DatasetError for more than MAX_VALUES."""
        path = self.data_path(episode_index)
        try:
            with open(path, "rb", opener=self.opener) as file:
                parquet = pq.ParquetFile(file)
                _check_size(parquet.metadata, path)
                return tables.columns(parquet.read(columns=_number_columns(parquet.schema_arrow)), path)
        except FileNotFoundError as error:
            raise DatasetError(f"{path} is missing; expected an episode's rows") from error
        except (pa.ArrowException, OSError) as error:
            raise DatasetError(f"{path} cannot be read as parquet ({str(error).splitlines()[0]})") from error


def _check_size(footer: pq.FileMetaData, path: object) -> None:
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    values = sum(group.column(column).num_values for group in groups for column in range(group.num_columns))
    if values > MAX_VALUES:
        raise DatasetError(f"{path} has {values:,} values; expected at most {MAX_VALUES:,} for a page")


def _number_columns(schema: pa.Schema) -> list[str]:
    """Return the names of columns that hold numbers, or lists of them."""
    numbers = {field.name for field in schema if _holds_numbers(field.type)}
    other_columns = [name for name in schema.names if name not in numbers]
    # pyarrow takes a name for all columns below it: `a` would bring the column `a.b`, too
    return [name for name in numbers if not any(other.startswith(f"{name}.") for other in other_columns)]


def _holds_numbers(kind: pa.DataType) -> bool:
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
