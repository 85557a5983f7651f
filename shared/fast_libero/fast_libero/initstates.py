"""Read LIBERO's init-state files without torch and without unpickling arbitrary objects.

A file is what `torch.save` wrote: a zip whose `data.pkl` holds one numpy array of flattened simulator states.
Unpickling an untrusted file can run any code, so only the names that such an array needs are resolved. LIBERO-PRO's
files are numpy archives with one array, `states`; LIBERO-plus's may hold a single state.
"""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np


def _latin1(text: str, encoding: str) -> bytes:
    """Return the bytes of a protocol-2 pickle's text form; raise UnpicklingError for another codec."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"codec {encoding!r} in an init-state file; expected 'latin1'")
    return text.encode("latin1")


_reconstruct = np.empty(0).__reduce__()[0]  # numpy 2 has moved it
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
}


class _ArrayUnpickler(pickle.Unpickler):
    """Resolves only the names that a plain numpy array needs."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(
                f"{module}.{name} is not allowed; an init-state file must hold one array of floats"
            )
        return _ALLOWED[module, name]


def read_init_states(path: Path, single: bool = False) -> np.ndarray:
    """Return the states of one file: float64 [n, 1 + nq + nv], each row (time, qpos, qvel).

    With `single` the file may hold one state, a vector. Raises ValueError if the file is missing, damaged, or not one
    finite 2-D array of floats.
    """
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                states = archive["states"]
        else:
            with zipfile.ZipFile(path) as archive:
                (name,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
                states = _ArrayUnpickler(io.BytesIO(archive.read(name))).load()
    except FileNotFoundError:
        raise ValueError(f"init states {path} not found; reinstall hf-libero, which contains them") from None
    except (OSError, zipfile.BadZipFile, pickle.UnpicklingError, ValueError, KeyError, EOFError, TypeError) as err:
        raise ValueError(f"init states at {path} cannot be read: {err}") from err
    if single and isinstance(states, np.ndarray) and states.ndim == 1:
        states = states[None]
    if not isinstance(states, np.ndarray) or states.ndim != 2 or states.dtype.kind != "f":
        kind = f"{states.dtype} {states.shape}" if isinstance(states, np.ndarray) else type(states).__name__
        raise ValueError(f"init states at {path} are {kind}; expected a float array [episodes, state]")
    if not np.isfinite(states).all():
        raise ValueError(f"init states at {path} hold NaN or infinity")
    return np.ascontiguousarray(states, dtype=np.float64)
