"""LIBERO's init-state files, read without torch and without trusting their pickle.

A file is what `torch.save` wrote: a zip whose `data.pkl` holds one numpy array of flattened simulator states.
Unpickling an untrusted file can run any code, so only the four names that such an array needs are resolved. A file of
LIBERO-PRO is numpy's own archive of one array, `states`; one of LIBERO-plus's may hold a single state.
"""

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
from numpy.core.multiarray import _reconstruct


def _latin1(text: str, encoding: str) -> bytes:
    """Returns the bytes of protocol-2 pickles' text form; any other codec is refused."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"codec {encoding!r} in an init-state file; expected 'latin1'")
    return text.encode("latin1")


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
}


class _ArrayUnpickler(pickle.Unpickler):
    """Resolves what a plain numpy array needs and nothing else."""

    def find_class(self, module, name):
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"{module}.{name} is not needed for a numpy array and was refused; "
                "an init-state file must hold one array of floats"
            ) from None

    def persistent_load(self, pid):
        raise pickle.UnpicklingError(f"persistent id {pid!r} in an init-state file; expected a plain array")


def read_init_states(path: Path, single: bool = False) -> np.ndarray:
    """Returns the states of one file: float64 [n, 1 + nq + nv], each row (time, qpos, qvel); with `single` the file
    may hold one state, a vector.

    Raises ValueError when the file is missing, damaged, or holds anything but one finite 2-D array of floats.
    """
    if path.suffix == ".npz":
        return _checked(_read_npz(path), path)
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith("data.pkl")]
            if len(names) != 1:
                raise ValueError(f"{len(names)} members end in data.pkl, expected one")
            states = _ArrayUnpickler(io.BytesIO(archive.read(names[0]))).load()
    except FileNotFoundError:
        raise ValueError(f"no init states at {path}; reinstall hf-libero, which carries them") from None
    except (zipfile.BadZipFile, pickle.UnpicklingError, ValueError, EOFError, TypeError) as err:
        raise ValueError(f"init states at {path} cannot be read: {err}") from err
    if single and isinstance(states, np.ndarray) and states.ndim == 1:
        states = states[None]
    return _checked(states, path)


def _read_npz(path: Path) -> np.ndarray:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return archive["states"]
    except (OSError, KeyError, zipfile.BadZipFile, ValueError, EOFError) as err:
        raise ValueError(f"init states at {path} cannot be read: {err}; expected an array called states") from err


def _checked(states, path: Path) -> np.ndarray:
    if not isinstance(states, np.ndarray) or states.ndim != 2 or states.dtype.kind != "f":
        kind = f"{states.dtype} {states.shape}" if isinstance(states, np.ndarray) else type(states).__name__
        raise ValueError(f"init states at {path} are {kind}; expected a float array [episodes, state]")
    if not np.isfinite(states).all():
        raise ValueError(f"init states at {path} hold NaN or infinity")
    return np.ascontiguousarray(states, dtype=np.float64)
