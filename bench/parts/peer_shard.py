"""`python peer_shard.py ASSETS WORK vla-eval's words…`: vla-eval's command line, in an environment of its own.

What it needs and LIBERO's lock has not is torch, which reads init states with it: a module of that name does.
"""

import sys
import types
from pathlib import Path

from fast_libero.initstates import read_init_states
from services.libero.simulator import runtime


def main() -> None:
    assets, work, *arguments = sys.argv[1:]
    torch = types.ModuleType("torch")
    torch.load = lambda path, **_: read_init_states(Path(path))
    sys.modules["torch"] = torch
    runtime.configure(assets, work, "cpu")
    from vla_eval.cli.main import main as vla_eval

    sys.argv = ["vla-eval", *arguments]
    vla_eval()


if __name__ == "__main__":
    main()
