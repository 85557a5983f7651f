"""LIBERO's HDF5 files written: one per task, each demonstration whole or absent until the set is finished."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from vla_datasets import metadata
from vla_datasets.errors import DatasetError
from vla_datasets.hdf5 import LiberoFiles, opened
from vla_datasets.writing import PIECES, Place, draft

TAG = "libero-v1"  # LIBERO's create_dataset.py at 8f1084e3
DESCRIPTION = "readme.json"  # what made the set, beside its files


class DemoWriter:
    """Writes a folder of LIBERO's files, with `Writer`'s members. `of_task` gives the attributes of a task's file by
    the file's name: problem_info and what else LIBERO writes there.
    """

    def __init__(
        self,
        folder: str | Path,
        of_task: Mapping[str, Mapping[str, Any]],
        source: Mapping[str, Any] | None = None,
        resume: bool = False,
    ):
        self.folder = Path(folder).expanduser().absolute()
        if self.folder.exists():
            raise DatasetError(f"{self.folder} is there already; choose another name, or remove it")
        self.of_task, self.source, self.draft = of_task, source, draft(self.folder)
        if not resume:
            shutil.rmtree(self.draft, ignore_errors=True)

    def written(self) -> set[int]:
        """Returns the episodes that are whole."""
        return {int(path.stem) for path in (self.draft / PIECES).glob("[0-9]*.hdf5")}

    def write(self, place: Place, columns: Mapping[str, np.ndarray], pictures: Mapping[str, np.ndarray]) -> None:
        """Writes one demonstration: arrays by their name in it, as "obs/ee_pos"; pictures as OpenGL draws them."""
        path = self.draft / PIECES / f"{place.episode}.hdf5"
        partial = path.with_name(f".{path.name}.partial")
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(partial, "w") as file:
            demo = file.create_group("demo")
            demo.attrs.update({"num_samples": len(columns["actions"]), "file": place.file})
            if "states" in columns:
                demo.attrs["init_state"] = columns["states"][0]
            for name, values in columns.items():
                demo.create_dataset(name, data=values)
            for name, values in pictures.items():  # a picture is read alone
                demo.create_dataset(f"obs/{name}", data=values, chunks=(1, *values.shape[1:]))
        partial.replace(path)

    def finish(self) -> LiberoFiles:
        """Puts each task's demonstrations into its file and gives the set its name; returns it."""
        numbers = sorted(self.written())
        if not numbers:
            raise DatasetError(f"{self.draft} has no demonstrations; expected at least one")
        for path in self.draft.glob("*.hdf5"):  # of a finish that was interrupted
            path.unlink()
        for number in numbers:
            self._append(self.draft / PIECES / f"{number}.hdf5")
        if self.source is not None:
            metadata.write_json(self.draft / DESCRIPTION, self.source)
        shutil.rmtree(self.draft / PIECES)
        self.draft.rename(self.folder)
        return LiberoFiles(self.folder)

    def _append(self, piece: Path) -> None:
        with opened(piece) as file:
            name = str(file["demo"].attrs["file"])
            with h5py.File(self.draft / name, "a") as whole:
                data = whole.require_group("data")
                count, total = int(data.attrs.get("num_demos", 0)), int(data.attrs.get("total", 0))
                file.copy("demo", data, f"demo_{count}")
                steps = int(file["demo"].attrs["num_samples"])
                told = {"num_demos": count + 1, "total": total + steps, "tag": TAG, **self.of_task[name]}
                convention = {"macros_image_convention": "opengl"}
                data.attrs.update({key: _attribute(one) for key, one in (told | convention).items()})


def _attribute(value: object) -> object:
    return value if isinstance(value, (int, str)) else json.dumps(value)
