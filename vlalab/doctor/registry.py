"""All checks there are, in the order in which a person is told of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vlalab.doctor.checks import containers, docker, graphics, host, network, nvidia, project, volume
from vlalab.doctor.types import Check

MODULES = {
    "host": (host,), "docker": (docker,), "nvidia": (nvidia,), "graphics": (graphics,), "network": (network,),
    "project": (project, volume), "environment": (containers,),
}  # fmt: skip


def checks() -> list[Check]:
    """Returns every check, each with its group."""
    return [
        replace(one, group=group) for group, modules in MODULES.items() for module in modules for one in module.CHECKS
    ]


def before(task: str) -> list[Check]:
    """Returns the few checks that a task depends on."""
    return [one for one in checks() if task in one.before]


def named(ids: Sequence[str]) -> list[Check]:
    """Returns the checks of those ids."""
    return [one for one in checks() if one.id in ids]
