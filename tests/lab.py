"""`./lab` in this process, which is far cheaper than one of its own."""

import sys

from vlalab import cli
from vlalab.host.console import LabError


def run_lab(*words: str) -> int:
    """Return the exit code of a command line. What a terminal would show is printed."""
    try:
        cli.run(words)
    except LabError as error:
        print(error.message, file=sys.stderr)
        return 1
    except SystemExit as ended:
        return ended.code or 0
    return 0
