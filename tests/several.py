"""Runs a training of several processes for tests, and ends all of them where they do not end by themselves."""

import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tests import forked

LAUNCH = (
    "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2", "--no-python",
)  # fmt: skip
SAYING_S = 5.0  # for threads to say where they are
FAMILY = "VLALAB_TEST_FAMILY"  # the variable by which all processes of one training are found


def trained(words: list[str], directory: Path, variables: dict[str, str], timeout_s: float = 300.0, **options) -> str:
    """Returns what two processes of `python WORDS` and their torchrun print. Fails with that, and where each was.

    torchrun's processes have sessions of their own: ending it alone would leave them, and whoever waits for the end of
    what they print.
    """
    printed = directory / "printed.txt"
    env = {**variables, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", FAMILY: str(directory)}
    with printed.open("w") as output:
        process = subprocess.Popen(
            forked.python(*LAUNCH, *forked.python(*words)), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env=env, **options,
        )  # fmt: skip
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        code = f"nothing within {timeout_s:g} s"
    finally:
        _end(process, str(directory))
    assert code == 0, f"ended with {code}:\n{printed.read_text()}"
    return printed.read_text()


def _end(process: subprocess.Popen, family: str) -> None:
    """Has all processes of a family say where they are, which ends them; nothing where the first of them has ended."""
    if process.poll() is not None:
        return
    for number in (signal.SIGABRT, signal.SIGKILL):
        for one in filter(lambda one: _variable(one, FAMILY) == family, psutil.process_iter()):
            with suppress(psutil.NoSuchProcess):
                one.send_signal(number)
        time.sleep(SAYING_S)
    process.wait()


def _variable(process: psutil.Process, name: str) -> str | None:
    with suppress(psutil.Error):
        return process.environ().get(name)
    return None
