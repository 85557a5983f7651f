"""Variants of environments: the same packages with a newer torch, in images/<env>/<variant>.

Without a choice, VLALAB_<ENV>_VARIANT, the machine decides: a GPU or a processor that the environment's own torch does
not serve gets the first variant.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping

from vlalab.host import nvidia_smi, paths
from vlalab.host.console import LabError, unknown

UPSTREAM = "upstream"  # the choice of the environment itself, which has the torch that the published code pins
NEW = (10, 0)  # compute capability: the oldest Blackwell, for which torch has code since CUDA 12.8


def environments() -> list[str]:
    """Return the environments with variants."""
    return list(dict.fromkeys(name.partition("-")[0] for name in paths.variant_names()))


def every() -> list[str]:
    """Return the distinct names of variants."""
    return list(dict.fromkeys(name.partition("-")[2] for name in paths.variant_names()))


def of(environment: str) -> list[str]:
    """Return the names of an environment's variants; most have none."""
    return [name.partition("-")[2] for name in paths.variant_names() if name.startswith(f"{environment}-")]


def variable(environment: str) -> str:
    """Return the variable that selects a variant: "openvla" → VLALAB_OPENVLA_VARIANT."""
    return f"VLALAB_{environment.upper()}_VARIANT"


def is_needed(capabilities: Iterable[tuple[int, ...]], processor: str) -> bool:
    """Return whether GPUs of these compute capabilities, or the processor, need a newer torch than upstream's."""
    return processor == "aarch64" or any(capability >= NEW for capability in capabilities)


def select(environment: str, choice: str = "", needed: bool | None = None) -> str:
    """Return the name of an environment or its variant: "openvla", "openvla-cu130".

    choice: a variant, "upstream", or "" or "auto" for the machine's default. needed: `is_needed`, by default of this
    machine. Raise LabError for an unknown choice.
    """
    names = of(environment)
    if choice in ("", "auto"):
        if names and needed is None:
            needed = is_needed(nvidia_smi.capabilities(), platform.machine())
        choice = names[0] if names and needed else UPSTREAM
    if choice != UPSTREAM and choice not in names:
        if not names:
            raise LabError(f"--variant {choice} does not apply to {environment}, which has no variants")
        raise LabError(unknown(f"variant of {environment}", choice, [UPSTREAM, *names]))
    return environment if choice == UPSTREAM else f"{environment}-{choice}"


def format_flags(name: str) -> str:
    """Return an environment or a variant as `./lab env` and `./lab build` take it: "openvla --variant cu130"."""
    return name.replace("-", " --variant ")


def interpolated(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of all variants as compose.yaml uses them: the selected variant, "" for upstream's torch."""
    names = environments()
    return {variable(name): select(name, variables.get(variable(name), "")).partition("-")[2] for name in names}
