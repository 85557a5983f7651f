"""Flags of tasks. Each is declared once: as an option of a program, or as a parameter of the task's function.

A parameter is declared like a field of an options dataclass: `lines: int = option(50, "how many lines", "[0, inf)")`.
KINDS defines the values of `option(…, kind=KIND)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
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
        default = self.default_help
        if not default and self.type is not bool and isinstance(self.default, (str, int, float)) and self.default:
            default = str(self.default)
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
    return tuple({name: None for entry in manifests.benchmarks().values() for name in getattr(entry, attribute)})


def _max_episodes() -> int:
    return max(benchmark.episodes for benchmark in manifests.benchmarks().values())


NAME_EXPECTED = "a name of letters, digits, '.', '_' and '-'"
DIRECTORY_NAME = matching(r"[\w][\w.-]*", NAME_EXPECTED, "NAME")
RUN_ID = matching(r"[A-Za-z0-9][A-Za-z0-9._-]*", NAME_EXPECTED, "RUN")
REPOSITORY = shared_code.load("vla_modelkit.checkpoint_options:REPOSITORY")
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
    "path or repository": lambda flag: existing((), "checkpoints", "NAME", REPOSITORY),
    "path or dataset": lambda flag: existing(flag.keywords, "datasets"),
    "policy": lambda flag: Values("WHICH", evaluation.check_policy, is_list=not flag.is_positional),
    "profile": lambda flag: choice(_of_benchmarks("profiles")),
    "published suite": lambda flag: choice(manifests.published_suites()),
    "published policy": lambda flag: choice(tuple({name: None for name, _ in reproduction.figures()})),
    "ranges": lambda flag: ranges(metavar=flag.metavar or "0-9,12"),
    "recording": lambda flag: replace(RUN_ID, metavar="NAME"),
    "run": lambda flag: Values("RUN", lambda label, text: runs.run(label, str(RUN_ID.read(label, text)))),
    "run or directory": lambda flag: Values("RUN", lambda _, text: runs.run("run", text)),
    "run id": lambda flag: matching(r"(?!latest$)[A-Za-z0-9][\w.-]*", f"{NAME_EXPECTED}, and not latest", "RUN"),
    "several": lambda flag: replace(choice(flag.keywords, metavar="A,B"), is_list=True),
    "service": lambda flag: choice([name for name, service in compose.read().items() if service.role != "job"]),
    "source": lambda flag: Values("NAME", datasets.source),
    "stored": lambda flag: Values("NAME,…", runs.thing),
    "suite": lambda flag: choice((*flag.keywords, *manifests.suites()), manifests.suite_aliases()),
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
    for name, declared in [pair for location in locations for pair in shared_code.options(location).items()]:
        if declared.group == "internal" or name in without or (only and name not in only):
            continue
        flag, default = Flag(**vars(declared)), declared.default
        if declared.type is not bool:
            text = f"{default:.12g}" if isinstance(default, (int, float)) else str(default or "")
            text = "" if default is MISSING else text
            flag = replace(flag, default=None, default_help=declared.default_help or text)
        elif default:  # a switch that is on: the flag turns it off
            flag = replace(flag, name=f"no_{name}", summary=declared.negated, default=False)
        if first := flags.get(name):
            same_default = first.default_help if flag.default_help in ("", first.default_help) else ""
            choices, keywords = first.choices + flag.choices, first.keywords + flag.keywords
            flag = replace(first, default_help=same_default)
            flag = replace(flag, choices=tuple(dict.fromkeys(choices)), keywords=tuple(dict.fromkeys(keywords)))
        flags[name] = flag
    return list(flags.values())


def flags_for(task: str, *locations: str, **which: Collection[str]) -> Callable[[], list[Flag]]:
    """Return a function that returns the flags of the models' and benchmarks' programs for a task, and of others."""

    def flags() -> list[Flag]:
        owners = {**manifests.models(), **manifests.benchmarks()}
        classes = {name: owner.options[task] for name, owner in owners.items() if task in owner.options}

        def labelled(flag: Flag) -> Flag:
            """Return a flag with the names of its owners, if others lack it or describe it otherwise."""
            name, owners_by_text = flag.name.removeprefix("no_"), dict[str, list[str]]()
            for owner, location in classes.items():
                if declared := shared_code.options(location).get(name):
                    text = declared.negated if flag.name != name else declared.summary
                    owners_by_text.setdefault(text, []).append(owner)
            if [len(names) for names in owners_by_text.values()] in ([], [len(classes)]):
                return flag
            texts = (f"{', '.join(names)}: {text}" for text, names in owners_by_text.items())
            return replace(flag, summary="; ".join(texts))

        return [labelled(flag) for flag in program_flags(*locations, *classes.values(), **which)]

    return flags


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
