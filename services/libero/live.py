"""`python -m services.libero.live --port 8006`: LIBERO live in the browser; see `vla_evaluation.live`."""

from services.libero.benchmark import BENCHMARK
from vla_common import entrypoint
from vla_evaluation.live.service import main

if __name__ == "__main__":
    entrypoint.run(main, BENCHMARK, f"python -m {__spec__.name}")
