"""Named tokens for students and programs, in the volume's token file, which policy services read."""

from __future__ import annotations

from vlalab.description import compose
from vlalab.engine import volumes
from vlalab.host import paths, shared_code
from vlalab.host.console import LabError, log_info

FILE = shared_code.module("vla_contract.server.token_file")
CONCURRENCY = int(FILE.CONCURRENCY)


def add(name: str, rate: float | None, concurrency: int) -> None:
    """Print a new token, once. Raise LabError for a bad or present name, and in a lab without a token of its own."""
    if not compose.token():
        raise LabError(
            "services without a token take every request, so nobody would be limited; set VLALAB_TOKEN in .env "
            "(8 characters or more) and run ./lab restart, then add tokens"
        )
    volumes.require_writable()
    paths.volume().mkdir(parents=True, exist_ok=True)
    try:
        print(FILE.add(FILE.path_on(paths.volume()), name, rate, concurrency))
    except ValueError as error:
        raise LabError(str(error)) from None
    log_info(f"the token of {name}, stored as a hash only: it cannot be shown again; pass it on as VLALAB_TOKEN")


def remove(name: str) -> None:
    """Remove a token; services reject it within a second. Raise LabError for an unknown name."""
    try:
        FILE.remove(FILE.path_on(paths.volume()), name)
    except ValueError as error:
        raise LabError(str(error)) from None


def show() -> None:
    """Print names and limits."""
    try:
        entries = FILE.load(FILE.path_on(paths.volume()))
    except ValueError as error:
        raise LabError(str(error)) from None
    width = max(map(len, ("name", *entries)))
    print(f"{'name':<{width}}  {'added (UTC)':<20}  {'requests/s':>10}  {'at once':>7}")
    for name, entry in entries.items():
        rate = "no limit" if entry.rate_per_s is None else f"{entry.rate_per_s:g}"
        print(f"{name:<{width}}  {entry.created:<20}  {rate:>10}  {entry.concurrency:>7}")
