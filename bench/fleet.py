"""How long `./lab fleet` takes for ten machines, and for one of them.

The machines are SSH servers on this one, and what they are asked for takes them 3 s without its processors, as a doctor
that waits for others does: ten real doctors at once on one machine would measure its cores.
"""

from __future__ import annotations

import contextlib
import getpass
import io
import os
import sys
import tempfile
from pathlib import Path

from bench.common import figure, flags, interleaved, median_ms
from tests import ssh_server
from vlalab.commands import fleet
from vlalab.commands.machines import Machine

ENVIRONMENT = "host"
MACHINES = 10
LAB = """#!/bin/sh
sleep 3
echo '{"schema": 1, "exit_code": 0, "checks": []}'
"""


def main() -> int:
    """Measures both in turns; returns 1 where ten take more than twice as long as one."""
    rounds = 2 if flags(__doc__, "at most a minute").parse_args().quick else 5
    with tempfile.TemporaryDirectory() as named:
        folder = Path(named)
        lab = folder / "lab"
        lab.write_text(LAB)
        lab.chmod(0o755)
        with ssh_server.running(folder, [f"gpu{n:02}" for n in range(MACHINES)]) as servers:
            os.environ["HOME"] = str(folder / "home")
            who = getpass.getuser()
            ten = [Machine(f"gpu{n:02}", "127.0.0.1", who, one.port, root=named) for n, one in enumerate(servers)]
            seconds = interleaved({"one": lambda: ask(ten[:1]), "ten": lambda: ask(ten)}, rounds)
    one, all_ten = (median_ms(seconds[name]) / 1e3 for name in ("one", "ten"))
    print(f"one machine {one:.2f} s, ten {all_ten:.2f} s")
    return 0 if figure("fleet_ten_to_one", all_ten / one, "ratio", "<=2", quick=True) else 1


def ask(machines: list[Machine]) -> None:
    """Asks machines as `./lab fleet doctor --json` does. Raises AssertionError where one does not answer well."""
    with contextlib.redirect_stdout(io.StringIO()):
        assert fleet.run("doctor", machines, fleet.PARALLEL, 60.0, as_json=True) == 0


if __name__ == "__main__":
    sys.exit(main())
