"""`python -m vlalab.steward FOLDER RUNTIME`: answers on FOLDER/socket who knows FOLDER/secret, until it is ended."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from pathlib import Path

from vlalab.engine import volumes
from vlalab.host import state
from vlalab.host.console import say
from vlalab.steward.acting import Steward
from vlalab.steward.serving import Server

PRIVATE = 0o177  # umask: a file for its owner alone


def main(folder: Path, runtime: str) -> None:
    """Serves; the secret is a new one each time. What root makes is given to the user of the page's container."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    secret = secrets.token_urlsafe(32)
    state.write(folder / "secret", secret)
    os.chdir(folder)  # the address of a socket has 107 characters at most, and a path may have more
    Path("socket").unlink(missing_ok=True)
    before = os.umask(PRIVATE)
    with Server("socket", Steward(runtime), secret) as server:
        os.umask(before)
        if os.geteuid() == 0:
            for name in ("secret", "socket"):
                os.chown(name, *volumes.owner(), follow_symlinks=False)
        say(f"the page's steward answers at {folder}/socket")
        try:
            server.serve_forever()
        finally:
            (folder / "socket").unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
