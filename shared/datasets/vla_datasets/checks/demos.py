"""LIBERO's HDF5 files: keys, shapes, lengths, numbers and images of every demonstration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from vla_datasets import hdf5
from vla_datasets.checks import Findings
from vla_datasets.errors import DatasetError

SIZES = {"actions": 7, "obs/ee_pos": 3, "obs/ee_ori": 3, "obs/gripper_states": 2}  # required for training
USUAL = ("states", "rewards", "dones", "obs/joint_states", "obs/agentview_rgb", "obs/eye_in_hand_rgb")


def check(findings: Findings, tick: Callable[[int, int], None]) -> None:
    """Check every file of the directory."""
    for path in hdf5.files(findings.directory):
        try:
            with hdf5.opened(path) as file:
                hdf5.require_inside(file, path)
                if "data" not in file:
                    findings.add(path, f"has no group 'data'; it has {', '.join(file) or 'nothing'}")
                    continue
                data = file["data"]
                demos = [name for name in data if name.startswith("demo_")]
                if not demos:
                    findings.add(path, "has no demonstrations; expected data/demo_0, data/demo_1, …")
                if "problem_info" not in data.attrs:
                    text = f"no problem_info; the instruction is from its name: {hdf5.instruction(data, path)!r}"
                    findings.note(path, text)
                if int(data.attrs.get("num_demos", len(demos))) != len(demos):
                    findings.add(path, f"num_demos is {data.attrs['num_demos']}; the file has {len(demos)}")
                for index, name in enumerate(demos):
                    tick(index, len(demos))
                    _demo(findings, path, f"data/{name}", data[name])
        except DatasetError as error:
            findings.error(path, error)


def _demo(findings: Findings, path: Path, group: str, demo: h5py.Group) -> None:
    missing = [key for key in SIZES if key not in demo]
    if "obs" not in demo:
        findings.add(path, f"{group} has no observations (obs); {hdf5.MAKE_OBSERVATIONS}")
    elif missing:
        findings.add(path, f"{group} has no {', '.join(missing)}")
    if absent := [key for key in USUAL if key not in demo]:
        findings.note(path, f"{group} has no {', '.join(absent)}")
    if "actions" not in demo:
        return
    length = len(demo["actions"])
    if not length:
        findings.add(path, f"{group} has no rows; training skips it")
    if int(demo.attrs.get("num_samples", length)) != length:
        findings.add(path, f"{group}: num_samples is {demo.attrs['num_samples']}; it has {length} actions")
    keys = [key for key in demo if isinstance(demo[key], h5py.Dataset)]
    keys += [f"obs/{key}" for key in demo.get("obs", ())]
    for key in keys:
        _array(findings, path, group, key, demo[key], length)


def _array(findings: Findings, path: Path, group: str, key: str, array: h5py.Dataset, length: int) -> None:
    if len(array) != length:
        findings.add(path, f"{group}/{key} has {len(array)} rows; it has {length} actions")
    if key in SIZES and array.shape[1:] != (SIZES[key],):
        findings.add(path, f"{group}/{key} has {list(array.shape[1:])} numbers a row; expected [{SIZES[key]}]")
    try:
        if key.endswith("_rgb"):
            hdf5.decode(array, range(len(array)), f"{group}/{key}")
        else:
            findings.not_finite(path, f"{group}/{key}", array[:])
    except DatasetError as error:
        findings.add(path, str(error))
        return
    except OSError as error:
        findings.add(path, f"{group}/{key} cannot be read: {error}")
        return
    if key.endswith("_rgb") and (array.dtype != np.uint8 or array.ndim != 4 or array.shape[-1] != 3):
        stored = f"{group}/{key} is {array.dtype} {list(array.shape)}, which the lab decodes"
        findings.note(path, f"{stored}; LIBERO's and openvla's tools expect uint8 [T, height, width, 3]")
