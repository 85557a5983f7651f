"""One training of `./lab bench sharing`: `CORES SECONDS`. Waits for a line at each step until all have come so far."""

from __future__ import annotations

import os
import sys
import time
from contextlib import redirect_stdout
from io import StringIO
from itertools import chain, islice, repeat
from pathlib import Path
from tempfile import TemporaryDirectory


def main() -> None:
    """Chooses its threads, trains for some seconds, and prints the number of threads and target words per second."""
    os.sched_setaffinity(0, {int(core) for core in sys.argv[1].split(",")})

    from services.ws_mdl.transformer.config import get_config
    from services.ws_mdl.transformer.train import Trainer, get_ds
    from vla_common.volume import Volume
    from vla_modelkit.training.machine import choose_machine

    go_on()
    machine, config = choose_machine("cpu"), get_config("tiny", device="cpu")
    with TemporaryDirectory() as folder:
        with redirect_stdout(StringIO()):  # the lines on stdout are the benchmark's
            data = get_ds(config, Path(folder), machine, Volume())
        trainer = Trainer(config, machine, data, Path(folder))
        batches = chain.from_iterable(repeat(data.train_dataloader))
        for batch in islice(batches, 3):
            trainer.step([batch])
        go_on()
        start, words = time.monotonic(), trainer.words
        end = start + float(sys.argv[2])
        while time.monotonic() < end:
            trainer.step([next(batches)])
        print(machine.threads, (trainer.words - words) / (time.monotonic() - start), flush=True)


def go_on() -> None:
    """Waits until all have come so far."""
    print("ready", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
