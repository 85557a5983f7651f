"""Read and write an episode's parquet file as arrays with a row per step."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

# Else importing parquet starts the threads of Amazon's storage, and ending them at exit can hang (pyarrow 14).
sys.modules.setdefault("pyarrow._s3fs", None)

import pyarrow.compute as pc  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from vla_common.regular_files import Opener, open_regular  # noqa: E402
from vla_datasets import metadata  # noqa: E402
from vla_datasets.errors import DatasetError  # noqa: E402

TYPES = {
    name: getattr(pa, name)()
    for name in ("float32", "float64", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
} | {"bool": pa.bool_(), "float16": pa.float16()}


def read(
    path: Path,
    opener: Opener | None = None,
    columns: Sequence[str] | None = None,
    rows: tuple[int, int] | None = None,
    max_values: int = metadata.MAX_VALUES,
) -> pa.Table:
    """Return a parquet file's table: all columns and rows by default.

    columns: missing ones are left out. rows: first and end; only the row groups that have them are read.
    Raises DatasetError for a file that is missing, not parquet, or too large.
    """
    try:
        with open_regular(path, metadata.MAX_BYTES[".parquet"], opener) as file:
            # Not `file` itself: Arrow's threads would use it, and one that does so at exit aborts the process.
            parquet = pq.ParquetFile(pa.OSFile(f"/proc/self/fd/{file.fileno()}"))
            first, end = rows or (0, parquet.metadata.num_rows)
            groups, before, values, group_end = [], 0, 0, 0
            for number in range(parquet.metadata.num_row_groups):
                group = parquet.metadata.row_group(number)
                group_end += group.num_rows
                if rows is not None and group_end <= first:
                    before = group_end
                elif rows is None or group_end - group.num_rows < end:
                    groups.append(number)
                    values += sum(group.column(column).num_values for column in range(group.num_columns))
            # A few bytes of parquet can declare billions of values.
            limits = (("rows", parquet.metadata.num_rows, metadata.MAX_ROWS), ("values", values, max_values))
            for unit, number, limit in limits:
                if number > limit:
                    expected = f"expected at most {limit:,}: check where it comes from"
                    raise DatasetError(f"{path} has {number:,} {unit}; {expected}")
            return parquet.read_row_groups(groups, columns=columns).slice(first - before, end - first)
    except FileNotFoundError as error:
        raise metadata.missing(path, "an episode's rows") from error
    except (pa.ArrowException, OSError) as error:
        raise metadata.unreadable(path, error, "parquet", opener) from error


def columns(table: pa.Table, path: Path) -> dict[str, np.ndarray]:
    """Return an array [T, …] for each column of numbers or texts; images are left out."""
    names = [name for name in table.column_names if not pa.types.is_struct(table.schema.field(name).type)]
    return {name: array(table.column(name), f"column {name} of {path}") for name in names}


def array(column: pa.ChunkedArray, label: str) -> np.ndarray:
    """Return a column as [T] or [T, n]. Raises DatasetError if its rows have different lengths."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(values, pa.ChunkedArray):  # of no chunk at all
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = pc.list_value_length(values).to_numpy(zero_copy_only=False)
        odd = np.flatnonzero(lengths != lengths[0]) if len(lengths) else []
        if len(odd):
            numbers = f"{lengths[odd[0]]} numbers; expected {lengths[0]} as in row 0"
            raise DatasetError(f"{label}: row {odd[0]} holds {numbers}")
        flat = array(values.flatten(), label)
        return flat.reshape(len(values), -1, *flat.shape[1:]) if len(values) else flat.reshape(0, 0)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.array(values.to_pylist(), object)
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise DatasetError(f"{label} contains {kind}; expected numbers")
    return values.to_numpy(zero_copy_only=False)


def write(path: Path, values: Mapping[str, np.ndarray]) -> None:
    """Write arrays [T] and [T, n] as a parquet file, atomically."""
    with metadata.replacing(path) as partial:
        pq.write_table(pa.table({name: _column(value) for name, value in values.items()}), partial)


def _column(values: np.ndarray) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(_column(values.reshape(-1, *values.shape[2:])), values.shape[1])
