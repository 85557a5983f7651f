"""How torch's CPU threads wait for their next piece of work. Imports nothing: it must come before torch."""

import os

SPINS = "10000"  # some tens of microseconds: longer than the pause between two layers


def set_wait_policy() -> None:
    """Lets threads look out for work for a moment before they sleep, unless $OMP_WAIT_POLICY says otherwise.

    Asleep at once, they are woken for every layer: an action takes 1.7 times as long. Awake all the time, they take the
    cores from simulators.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # libgomp's own, which torch brings
