"""`python stock_141.py ASSETS WORK SUITE INDEX FILE`: LIBERO's own loop on robosuite 1.4.1, which PYTHONPATH names.

FILE holds start and actions, and afterwards what the loop saw. It is a process of its own, for a process has one
robosuite.
"""

import sys
from pathlib import Path

import numpy as np

from services.libero.simulator import runtime
from tests.libero.test_env import PARTS, record_stock, task_of


def main(assets: str, work: str, suite: str, index: str, file: str) -> None:
    """Play what `file` holds and adds what was seen to it."""
    runtime.configure(assets, work, render="cpu")
    import robosuite
    from libero.libero.envs import OffScreenRenderEnv

    def make(task, cameras):
        """Return LIBERO's environment, as the fixture `stock_env` does."""
        return OffScreenRenderEnv(
            bddl_file_name=str(task.bddl_path), camera_names=list(cameras), camera_heights=256, camera_widths=256
        )

    assert robosuite.__version__ == "1.4.1", robosuite.__file__
    given = np.load(Path(file))
    views = record_stock(make, task_of(suite, int(index)), given["start"], given["actions"])
    np.savez(file, **{name: np.array([view[number] for view in views]) for number, name in enumerate(PARTS)})


if __name__ == "__main__":
    main(*sys.argv[1:])
