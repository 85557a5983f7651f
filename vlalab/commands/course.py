"""The settings of the course's labs for `train --set`, checked before an environment is created."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vlalab.description import manifests
from vlalab.host import shared_code
from vlalab.host.console import LabError, check_choices
from vlalab.host.shared_code import Interval, Option

TRUE, FALSE = ("true", "yes", "1"), ("false", "no", "0")


def service() -> str:
    """Return the service that has the labs."""
    return next(name for name, manifest in manifests.services().items() if manifest.labs)


def practice() -> tuple[str, ...]:
    """Return the practice labs."""
    return manifests.services()[service()].practice


def labs() -> tuple[str, ...]:
    """Return all labs, practice labs last."""
    return (*manifests.services()[service()].labs, *practice())


def module(lab: str, program: str) -> str:
    """Return the module of a lab's program: train, sample …; a practice lab is one module."""
    if lab in practice():
        return f"services.{manifests.directory_of(service())}.practice.{lab}"
    return f"{manifests.services()[service()].labs[lab]}.{program}"


def config(lab: str) -> str:
    """Return the dataclass of a lab's settings, as MODULE:CLASS."""
    if lab in practice():
        return f"services.{manifests.directory_of(service())}.practice.settings:{lab.capitalize()}"
    return f"{module(lab, 'config')}:Config"


def exercises() -> tuple[str, ...]:
    """Return the names of the lessons' exercises."""
    return shared_code.load("lessons.exercises:NAMES")


def settings(lab: str) -> dict[str, Option]:
    """Return a lab's settings by flag name: batch-size."""
    return {option.flag: option for option in shared_code.options(config(lab)).values()}


def flags(lab: str, typed: Sequence[str]) -> list[str]:
    """Return the trainer's flags for the values of --set: NAME=VALUE, or the NAME of a switch.

    Raise LabError for unknown names and invalid values.
    """
    options, trainer_flags = settings(lab), []
    for text in typed:
        name, equals, value = text.partition("=")
        name = name.replace("_", "-")
        check_choices(f"train {lab} --set", [name], options)
        option = options[name]
        if option.type is bool:
            value = value.lower() if equals else "true"
            if value not in TRUE + FALSE:
                raise LabError(f"invalid value in --set {name}={value}; expected {name}=true or {name}=false")
            trainer_flags.append(f"--{name}" if value in TRUE else f"--no-{name}")
            continue
        if not value:
            raise LabError(f"--set {name} requires a value; expected {name}={example(option)}")
        if option.choices:
            check_choices(f"--set {name}", [value], list(map(str, option.choices)))
        elif option.type in (int, float):
            try:
                Interval(option.within or "(-inf, inf)").read(f"--set {name}", value, option.type)
            except ValueError as error:
                raise LabError(str(error)) from None
        trainer_flags.append(f"--{name}={value}")
    return trainer_flags


def example(option: Option) -> str:
    """Return an example of a setting's value: its choices, or its default."""
    if option.choices:
        return "|".join(map(str, option.choices))
    if option.default is None:
        return "N"
    return f"{option.default:g}" if isinstance(option.default, float) else str(option.default)


def rows(lab: str, flags_help: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return (name and example, meaning) of each setting.

    flags_help: help of the settings that are also flags of `train`; one is listed only if its meaning differs here.
    """
    table = []
    for name, setting in settings(lab).items():
        if setting.name in flags_help:
            if flags_help[setting.name] != setting.summary:
                table.append((f"--{name}", setting.summary))
            continue
        default = setting.default_help or (str(setting.default or "") if setting.choices else "")
        text = f"{setting.summary}; default: {default}" if default else setting.summary
        table.append((name if setting.type is bool else f"{name}={example(setting)}", text))
    return table
