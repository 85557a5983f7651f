"""`./lab test chaos`: attacks this lab's own evaluations and services on this machine, and says what held.

    PYTHONPATH=.:shared/common:shared/contract:shared/evaluation:shared/fast_libero \
        images/libero/.venv/bin/python -m tests.chaos --minutes 2.5 --seed 7

Bounded in time and count, aimed at loopback only, repeatable by its seed. Four families: faults on running evaluations
(rounds.py), requests to the policies that run here (attack.py) and to the pages (pages.py), planted files (planted.py).
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from services.libero import assets
from tests.chaos import planted, targets
from tests.chaos.attack import attack_policy
from tests.chaos.ledger import Ledger
from tests.chaos.pages import attack_page
from tests.chaos.rounds import Faults
from tests.chaos.stage import PLANS
from tests.libero.harness import ROOT
from vla_common.volume import Volume

SHARES = {"faults": 0.4, "policies": 0.25, "pages": 0.25, "planted": 0.1}  # of the time
SHORT_MIN = 2.5  # for all families
MIN_S = 6.0  # for a service, however short the whole

Attack = Callable[[targets.Target, int, float, Ledger], None]  # what, its seed, for so many s, and what is counted


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Attacks this lab and says what held.")
    parser.add_argument("--minutes", type=float, help=f"about how long (default: the families' share of {SHORT_MIN:g})")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    parser.add_argument("--only", choices=SHARES, action="append", help="one family of attacks")
    parser.add_argument("--round", type=int, default=None, help="one round of faults, by its number")
    parser.add_argument("--service", action="append", help="one service, by its name")
    parser.add_argument("--lab", type=Path, default=ROOT / "lab", help="the launcher, whose eval is disturbed too")
    parser.add_argument("--report", type=Path, default=None, help="file for the counts, as JSON")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the families in turn; returns 1 where something did not hold."""
    options = parse(arguments)
    seed = options.seed if options.seed is not None else int(time.time()) % 100_000
    share = sum(SHARES[family] for family in options.only or SHARES)
    options.minutes, repeat_minutes = options.minutes or SHORT_MIN * share, options.minutes or SHORT_MIN
    ledger = Ledger(shlex.join(["./lab", "test", "chaos", "--seed", str(seed), "--minutes", f"{repeat_minutes:g}"]))
    print(f"seed {seed}, {options.minutes:g} minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="vlalab-chaos-", ignore_cleanup_errors=True) as directory:
        attack_all(Path(directory), options, seed, ledger)
    ledger.show()
    if options.report is not None:
        ledger.write(options.report)
    return 1 if ledger.failures else 0


def attack_all(directory: Path, options: argparse.Namespace, seed: int, ledger: Ledger) -> None:
    """Run the chosen families, each for its share of the time."""
    families = options.only or list(SHARES)
    total_s = 60 * options.minutes / sum(SHARES[family] for family in families)
    lab = options.lab if (ROOT / ".venv" / ".stamp").exists() else None
    faults = Faults(directory, Path(assets.resolve(None, Volume().root).path), ledger, lab)
    for family in families:
        print(f"{family}:", flush=True)
        seconds = total_s * SHARES[family]
        until = time.monotonic() + seconds
        if family == "faults":
            faults.play(seed, 0, until, options.round)
        elif family == "policies":
            recipes = targets.policies(faults.undisturbed(PLANS[0]))
            attack_services(directory, recipes, attack_policy, seed, seconds, ledger, options.service)
        elif family == "pages":
            attack_services(directory, targets.pages(), attack_page, seed, seconds, ledger, options.service)
        elif lab is None:
            ledger.skip("planted files", "the host tool's own environment is not made (./lab makes it)")
        else:
            planted.attack(directory, lab, seed, until, ledger)


def attack_services(
    directory: Path, recipes: Mapping[str, targets.Recipe], attack: Attack, seed: int, seconds: float, ledger: Ledger,
    only: list[str] | None,
) -> None:  # fmt: skip
    """Attacks each service that runs here, one after the other; what is left of the time is shared among the rest."""
    selected, until = [name for name in recipes if not only or name in only], time.monotonic() + seconds
    for left, name in zip(range(len(selected), 0, -1), selected, strict=True):
        share = (until - time.monotonic()) / left
        target = targets.start(name, recipes[name], directory)
        if isinstance(target, str):
            ledger.skip(name, target)
            continue
        try:
            attack_service(target, recipes[name], attack, seed, time.monotonic() + share, ledger)
        finally:
            target.stop()


def attack_service(
    target: targets.Target, recipe: targets.Recipe, attack: Attack, seed: int, until: float, ledger: Ledger
) -> None:
    """Wait for one service and attacks it until that moment, for some seconds at least."""
    if problem := targets.wait_ready(target, recipe):
        ledger.count(f"{target.name}: starts", False, problem)
        return
    left = max(until - time.monotonic(), MIN_S)
    print(f"  {target.name} at {target.url}, {left:.0f} s", flush=True)
    attack(target, seed, left, ledger)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
