"""Flags of tasks. Each is declared once: as an option of a program, or as a parameter of the task's function.

A parameter is declared like a field of an options dataclass: `lines: int = option(50, "how many lines", "[0, inf)")`.
KINDS defines the values of `option(…, kind=KIND)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, make_dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_origin, get_type_hints

from vlalab.commands import course, evaluation, programs, reproduction
from vlalab.description import compose, datasets, gpus, manifests, runs, service_settings, variants
from vlalab.host import shared_code
from vlalab.host.console import LabError
from vlalab.host.shared_code import Option, option
from vlalab.tasks.values import Values, choice, existing, matching, number, ranges

Runtime = Literal["auto", "docker", "local"]


@dataclass(frozen=True)
class Flag(Option):
    """A flag or a positional argument of a task. Flags of programs have no default here: the program has it."""

    @property
    def flag(self) -> str:
        """Its name as typed, without dashes; a parameter named like a Python keyword ends with "_"."""
        return self.name.rstrip("_").replace("_", "-")

    @property
    def is_positional(self) -> bool:
        """Whether it is a positional argument."""
        return self.group == "word"

    @property
    def is_needed(self) -> bool:
        """Whether it is required."""
        return self.is_positional and self.default is MISSING and not self.is_several

    @property
    def is_several(self) -> bool:
        """Whether its value is a list."""
        return get_origin(self.type) is list

    @property
    def label(self) -> str:
        """Its name in messages."""
        return self.flag if self.is_positional else f"--{self.flag}"

    @property
    def usage(self) -> str:
        """Its usage in the help: SUITE …, --trials N, --resume [RUN], --no-host."""
        if self.is_positional:
            name = self.metavar or self.flag.upper()
            return f"{name} …" if self.is_several and "…" not in name else name
        if self.type is bool:
            return f"--{self.flag}"
        return f"--{self.flag} " + (f"[{self.values.metavar}]" if self.optional_value else self.values.metavar)

    @property
    def help(self) -> str:
        """Its description and default."""
        text = self.summary or " or ".join(", ".join(self.values.choices).rsplit(", ", 1))
        default = self.default if isinstance(self.default, (str, int, float)) and self.type is not bool else ""
        default = self.default_help or (str(default) if default not in ("", 0) else "")
        return f"{text}; default: {default}" if default else text

    @cached_property
    def values(self) -> Values:
        """The values it accepts."""
        if self.kind:
            return KINDS[self.kind](self)
        if self.choices:
            return choice(tuple(map(str, self.choices)), metavar=self.metavar or "WHICH")
        if self.type in (int, float):
            return number(self.within or "(-inf, inf)", self.type, self.metavar or "N")
        if self.pattern:
            return matching(self.pattern, self.expected, self.metavar or "TEXT", self.keywords)
        return Values(self.metavar or ("A,B" if self.is_several else "TEXT"))

    def read(self, typed: Sequence[str | bool]) -> object:
        """Return the value of what was typed, or the default. Raise LabError for an invalid value."""
        values = self.values
        if not typed:
            return [] if self.is_several and self.default is MISSING else self.default
        if True in typed:  # the flag stood alone
            return True
        if not (self.is_several or values.is_list):
            if len(typed) > 1:
                raise LabError(f"{self.label} was given more than once (the second value is '{typed[1]}')")
            return values.read(self.label, typed[0])
        parts = [part.strip() for part in ",".join(typed).split(",")]
        read = [values.read(self.label, part) for part in parts if part or not self.is_several]
        return read if self.is_several else ",".join(map(str, read))


def _devices(label: str, text: str) -> str:
    return text if text in ("auto", "none", "all") else ",".join(gpus.devices(text, label))


def _address(label: str, text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise LabError(f"invalid address {label} {text}; expected host:port, for example 0.0.0.0:8100")
    return text


def _robot(label: str, text: str) -> object:
    return (existing(metavar="FILE") if text.endswith(".json") else DIRECTORY_NAME).read(label, text)


def _of_benchmarks(attribute: str) -> tuple[str, ...]:
    """Return the distinct cameras or profiles of all benchmarks."""
    return tuple(
        dict.fromkeys(name for benchmark in manifests.benchmarks().values() for name in getattr(benchmark, attribute))
    )


def _max_episodes() -> int:
    return max(benchmark.episodes for benchmark in manifests.benchmarks().values())


def _suites(*keywords: str) -> Values:
    return choice((*keywords, *manifests.suites()), manifests.suite_aliases())


NAME_EXPECTED = "a name of letters, digits, '.', '_' and '-'"
DIRECTORY_NAME = matching(r"[\w][\w.-]*", NAME_EXPECTED, "NAME")
RUN_ID = matching(r"[A-Za-z0-9][A-Za-z0-9._-]*", NAME_EXPECTED, "RUN")
# `kind` of an option → its values.
KINDS: dict[str, Callable[[Flag], Values]] = {
    "address": lambda flag: Values("HOST:PORT", _address),
    "assets": lambda flag: choice((*programs.asset_getters(), "official", "kit", "status")),
    "cameras": lambda flag: replace(choice(_of_benchmarks("cameras"), metavar="A,B"), is_list=True),
    "checkpoint": lambda flag: Values("NAME", lambda label, text: service_settings.existing_checkpoint(text)),
    "dataset": lambda flag: Values("NAME", datasets.dataset),
    "device": lambda flag: matching(r"cuda:\d+", flag.summary, "WHICH", ("auto", "cpu", "cuda", "mps")),
    "devices": lambda flag: Values("WHICH", _devices, ("auto", "none", "all")),
    "directory name": lambda flag: DIRECTORY_NAME,
    "embodiment": lambda flag: Values("NAME", _robot),
    "environment": lambda flag: choice(tuple(manifests.environments())),
    "episodes": lambda flag: ranges(_max_episodes(), metavar="0-9,12"),
    "exercise": lambda flag: choice(course.exercises()),
    "lab": lambda flag: choice(course.labs()),
    "model": lambda flag: choice(programs.models_with(flag.keywords[0])),
    "notebooks": lambda flag: choice(tuple(manifests.notebooks())),
    "one of": lambda flag: choice(flag.keywords),
    "path": lambda flag: existing(flag.keywords, metavar=flag.metavar or "PATH"),
    "path or checkpoint": lambda flag: existing(flag.keywords, "checkpoints", "NAME"),
    "path or dataset": lambda flag: existing(flag.keywords, "datasets"),
    "policy": lambda flag: Values("WHICH", evaluation.check_policy, is_list=not flag.is_positional),
    "profile": lambda flag: choice(_of_benchmarks("profiles")),
    "published suite": lambda flag: choice(manifests.published_suites()),
    "published policy": lambda flag: choice(tuple(dict.fromkeys(name for name, _ in reproduction.figures()))),
    "ranges": lambda flag: ranges(metavar=flag.metavar or "0-9,12"),
    "recording": lambda flag: replace(RUN_ID, metavar="NAME"),
    "run": lambda flag: Values("RUN", lambda label, text: runs.run(label, str(RUN_ID.read(label, text)))),
    "run or directory": lambda flag: Values("RUN", lambda _, text: runs.run("run", text)),
    "run id": lambda flag: matching(r"(?!latest$)[A-Za-z0-9][\w.-]*", f"{NAME_EXPECTED}, and not latest", "RUN"),
    "several": lambda flag: replace(choice(flag.keywords, metavar="A,B"), is_list=True),
    "service": lambda flag: choice([name for name, service in compose.read().items() if service.role != "job"]),
    "source": lambda flag: Values("NAME", datasets.source),
    "stored": lambda flag: Values("NAME,…", runs.thing),
    "suite": lambda flag: _suites(*flag.keywords),
    "tasks": lambda flag: ranges(names=True),
    "trained": lambda flag: Values("NAME", lambda label, text: runs.model(label, text, flag.keywords[0])),
    "variant": lambda flag: choice((variants.UPSTREAM, *variants.every())),
    "trials": lambda flag: number(f"[1, {_max_episodes()}]"),
}


def positional(default: Any = MISSING, help: str = "", **more: Any) -> Any:
    """Return the declaration of a positional argument; a list takes all remaining ones."""
    return option(default, help, group="word", **more)


def flags_of_function(function: Callable[..., None]) -> list[Flag]:
    """Return the flags that a function's parameters declare; parameters without a declaration are shared flags."""
    declared = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    hints = get_type_hints(function)
    fields = [(name, hints[name], default) for name, default in declared.items() if isinstance(default, Field)]
    options = shared_code.options_of(make_dataclass("Flags", fields, kw_only=True))
    return [Flag(**vars(declaration)) for declaration in options.values()]


def program_flags(*locations: str, only: Collection[str] = (), without: Collection[str] = ()) -> list[Flag]:
    """Return the flags of a program's options.

    locations: MODULE:CLASS of each program that the task may run; an option that several have becomes one flag, which
    accepts the values of all. only, without: names of options.
    """
    flags: dict[str, Flag] = {}
    for location in locations:
        for name, declared in shared_code.options(location).items():
            if declared.group == "internal" or name in without or (only and name not in only):
                continue
            flag = Flag(**vars(declared))
            if declared.type is not bool:
                is_number = isinstance(declared.default, (int, float))
                default = (
                    f"{declared.default:.12g}"
                    if is_number
                    else ""
                    if declared.default is MISSING
                    else declared.default or ""
                )
                flag = replace(flag, default=None, default_help=declared.default_help or str(default))
            elif declared.default:  # a switch that is on: the flag turns it off
                flag = replace(flag, name=f"no_{declared.name}", summary=declared.negated, default=False)
            if first := flags.get(name):
                choices = tuple(dict.fromkeys(first.choices + flag.choices))
                keywords = tuple(dict.fromkeys(first.keywords + flag.keywords))
                default = first.default_help if flag.default_help in ("", first.default_help) else ""
                flag = replace(first, choices=choices, keywords=keywords, default_help=default)
            flags[name] = flag
    return list(flags.values())


def of_models(task: str, *more: str, **which: Collection[str]) -> Callable[[], list[Flag]]:
    """Return a function that returns the flags of the models' programs for a task."""
    return lambda: program_flags(*more, *_option_classes(manifests.models(), task), **which)


def of_benchmarks(task: str, **which: Collection[str]) -> Callable[[], list[Flag]]:
    """Return a function that returns the flags of the benchmarks' programs for a task."""
    return lambda: program_flags(*_option_classes(manifests.benchmarks(), task), **which)


def _option_classes(
    programs: Mapping[str, manifests.ServiceModel] | Mapping[str, manifests.BenchmarkEntry], task: str
) -> list[str]:
    return [program.options[task] for program in programs.values() if task in program.options]


def _shared(
    runtime: Runtime = option(
        "auto", "docker, local or auto: containers if Docker is running and the images are built, else processes"
    ),
    dry_run: bool = option(False, "print the commands without running them"),
    no_check: bool = option(False, "skip the doctor's quick checks"),
    variant: str | None = option(
        None, f"{variants.UPSTREAM}, or another torch in the same environment: {', '.join(variants.every())}",
        kind="variant", default_help="by the GPU (docs/machine.md)",
    ),
    gpu: str | None = option(
        None, "auto, none, all, or devices as in nvidia-smi: 0 or 0,1, or UUIDs", kind="devices",
        default_help="VLALAB_<SERVICE>_GPU, else auto",
    ),
) -> None:  # fmt: skip
    """Declare the flags that several tasks share."""


SHARED = {flag.flag: flag for flag in flags_of_function(_shared)}
