"""`python -m services.metaworld.datasets SOURCE --format lerobot`: make a data set from a recording or a run."""

from __future__ import annotations

import tyro

from services.metaworld.datasets.config import MetaworldDatasetOptions
from services.metaworld.datasets.convert import make
from vla_common import entrypoint
from vla_common.volume import VolumeError
from vla_datasets import program
from vla_evaluation.store.records import StoreError


def main() -> int:
    """Run the command given by the flags; return the exit code."""
    config = tyro.cli(MetaworldDatasetOptions, prog="dataset", config=(tyro.conf.PositionalRequiredArgs,))
    made = make(config)
    return program.read(made, config.check, config.show) if config.check or config.show else 0


if __name__ == "__main__":
    entrypoint.run(main, expected=(ValueError, VolumeError, StoreError, RuntimeError))
