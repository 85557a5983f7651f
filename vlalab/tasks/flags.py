"""Flags as data, and tasks made of flags and a function.

A task's function gets every flag's value by name, read and checked: "--max-steps 5" arrives as max_steps=5. The flags
of a program come from the dataclass of its options (`program_flags`); those of the host tool stand at their task.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, replace

from invoke import Argument, Context, Exit, Task

from vlalab.description import datasets, gpus, manifests, runs, service_settings
from vlalab.description.manifests import Benchmark, Model
from vlalab.host import borrowed
from vlalab.host.borrowed import Option
from vlalab.host.console import LabError
from vlalab.tasks import following
from vlalab.tasks.values import Checked, Existing, Like, Number, OneOf, Ranges, Several, Text, Values

REQUIRED = object()  # as a word's default: the task does nothing without it


@dataclass(frozen=True)
class Flag:
    """A flag of a task, or a plain word after it (`is_word`). A default of False or True makes a switch."""

    name: str  # as typed, without its dashes
    help: str
    values: Values = Text()  # noqa: RUF009  frozen
    default: object = None
    default_help: str = ""  # what happens without it, where the default does not say so
    is_word: bool = False
    variadic: bool = False  # all plain words after the task
    optional_value: bool = False  # without a value it arrives as True
    advanced: bool = False  # help shows it below the others
    repeats: bool = False  # may be typed more than once, as lists may: its values arrive joined by commas

    @property
    def variable(self) -> str:
        """Its name as a parameter: max_steps."""
        return self.name.replace("-", "_")

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return isinstance(self.default, bool)

    @property
    def is_list(self) -> bool:
        """Whether it may be typed more than once: its values are then one list."""
        return isinstance(self.values, (Several, Ranges)) or self.repeats

    @property
    def label(self) -> str:
        """What messages call it."""
        return self.name if self.is_word else f"--{self.name}"

    @property
    def shown(self) -> str:
        """How help shows it: SUITE, --trials N, --resume [RUN], --no-host."""
        if self.is_word:
            return self.values.shown if self.variadic else self.name.upper()
        if self.is_switch:
            return f"--no-{self.name}" if self.default else f"--{self.name}"
        return f"--{self.name} [{self.values.shown}]" if self.optional_value else f"--{self.name} {self.values.shown}"

    @property
    def explained(self) -> str:
        """Its help, and what happens without it."""
        text = str(self.default) if self.default and isinstance(self.default, (str, int)) else ""
        default = self.default_help or text
        return self.help if self.is_switch or not default else f"{self.help}; default: {default}"

    def argument(self) -> Argument:
        """Return it as Invoke's parser takes it; values arrive as text."""
        return Argument(
            name=self.name,
            attr_name=self.variable if self.variable != self.name else None,
            kind=bool if self.is_switch else str,
            default=self.default if self.is_switch else None,
            help=self.help,
            positional=self.is_word and not self.variadic,
            optional=self.optional_value,
        )

    def read(self, typed: object) -> object:
        """Return the value of what was typed, the default for None. Raise LabError for an invalid one."""
        if typed is None:
            return self.default
        return self.values.read(self.label, typed) if isinstance(typed, str) else typed

    def replace(self, **changes: object) -> Flag:
        """Return it with some of it changed, for a task where it means a little more."""
        return replace(self, **changes)


Flags = Callable[[], list[Flag]]  # called when the task is used: it may import a program's options
More = Callable[[], dict[str, list[tuple[str, str]]]]  # title → rows of a name and what it means


def word(name: str, help: str, values: Values = Text(), **more: object) -> Flag:  # noqa: B008  frozen
    """Return a plain word that a task needs."""
    return Flag(name, help, values, REQUIRED, is_word=True, **more)


def words(name: str, help: str, values: Values, default: object = ()) -> Flag:
    """Return the list of all plain words after a task; none are fine."""
    return Flag(name, help, values, default, is_word=True, variadic=True)


class LabTask(Task):
    """Invoke's task with flags that are data."""

    def __init__(self, body: Callable[..., None], short: str, flags: Flags, name: str, more: More) -> None:
        self.short, self.make_flags, self.more, self.function = short, flags, more, body
        super().__init__(self.run, name=name, positional=(), auto_shortflags=False)
        self.__doc__ = body.__doc__

    @functools.cached_property
    def flags(self) -> tuple[Flag, ...]:
        """Its flags, in the order of its help: common ones, then advanced ones."""
        return tuple(sorted(self.make_flags(), key=lambda flag: flag.advanced))

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        """Return the arguments of Invoke's parser, new ones since the parser writes into them."""
        return [flag.argument() for flag in self.flags]

    def flag(self, name: str) -> Flag:
        """Return the flag of that name, with dashes or with underscores."""
        return next(flag for flag in self.flags if flag.variable == name.replace("-", "_"))

    @property
    def variadic(self) -> Flag | None:
        """The list of plain words, where the task has one."""
        return next((flag for flag in self.flags if flag.variadic), None)

    def run(self, c: Context, **typed: object) -> None:
        """Read and check every flag, run the doctor's few checks where --no-check can turn them off, then the task."""
        values = {flag.variable: flag.read(typed.get(flag.variable)) for flag in self.flags}
        if not values.pop(NO_CHECK.variable, True) and not values.get(DRY_RUN.variable):
            from vlalab.commands import examining  # a task without checks need not load it

            examining.require(self.name, values)
        self.function(**values)
        following.tell(self.name, values)


def task(
    short: str, flags: Flags = list, name: str = "", more: More = dict
) -> Callable[[Callable[..., None]], LabTask]:
    """Return the decorator that makes a task of a function.

    short: what it does, for the list of all tasks. more: what its help prints below the flags.
    """
    return lambda body: LabTask(body, short, flags, name or body.__name__, more)


def tasks_of(module: object) -> list[LabTask]:
    """Return a group's tasks, in the order in which they are written."""
    return [one for one in vars(module).values() if isinstance(one, LabTask)]


def finish(code: int) -> None:
    """End the task with that exit code."""
    if code:
        raise Exit(code=code)


# --- flags from a program's options -------------------------------------------------------------------------

DIRECTORY_NAME = Like(r"[\w][\w.-]*", "letters, digits, '.', '_' and '-', as a folder's name", "NAME")
RUN_ID = Like(r"[A-Za-z0-9][A-Za-z0-9._-]*", DIRECTORY_NAME.expected, "RUN")
CHECKPOINT = Checked(lambda label, text: service_settings.existing_checkpoint(text), "NAME")
DATASET = Checked(datasets.dataset, "NAME")


def _devices(label: str, text: str) -> str:
    return text if text in ("auto", "none", "all") else ",".join(gpus.devices(text, label))


def of_benchmarks(what: str) -> tuple[str, ...]:
    """Return the cameras or the profiles of all benchmarks, each once."""
    return tuple(dict.fromkeys(name for one in manifests.benchmarks().values() for name in getattr(one, what)))


def max_episodes() -> int:
    """Return the most init states that a task of any benchmark has."""
    return max(one.episodes for one in manifests.benchmarks().values())


def _robot(label: str, text: str) -> object:
    return (Existing(shown="FILE") if text.endswith(".json") else DIRECTORY_NAME).read(label, text)


def _address(label: str, text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise LabError(f"{label} {text} is no address; expected host:port, for example 0.0.0.0:8100")
    return text


# `kind` of an option → what its value may be.
KINDS: dict[str, Callable[[Option], Values]] = {
    "address": lambda one: Checked(_address, "HOST:PORT"),
    "cameras": lambda one: Several(OneOf(of_benchmarks("cameras")), joined=True),
    "checkpoint": lambda one: CHECKPOINT,
    "dataset": lambda one: DATASET,
    "device": lambda one: Like(r"cuda:\d+", one.summary, "WHICH", ("auto", "cpu", "cuda", "mps")),
    "directory name": lambda one: DIRECTORY_NAME,
    "embodiment": lambda one: Checked(_robot, "NAME"),
    "episodes": lambda one: Ranges(max_episodes(), shown="0-9,12"),
    "path": lambda one: Existing(one.keywords, shown=one.metavar or "PATH"),
    "path or checkpoint": lambda one: Existing(one.keywords, "checkpoints", "NAME"),
    "path or dataset": lambda one: Existing(one.keywords, "datasets"),
    "profile": lambda one: OneOf(of_benchmarks("profiles")),
    "published suite": lambda one: OneOf(manifests.published_suites()),
    "ranges": lambda one: Ranges(shown=one.metavar or "0-9,12"),
    "recording": lambda one: Like(RUN_ID.pattern, RUN_ID.expected, "NAME"),
    "run": lambda one: Checked(lambda label, text: runs.run(label, str(RUN_ID.read(label, text))), "RUN"),
    "run id": lambda one: Like(rf"(?!latest$){RUN_ID.pattern}", f"{RUN_ID.expected}, and not latest", "RUN"),
    "several": lambda one: Several(OneOf(one.keywords), joined=True),
    "tasks": lambda one: Ranges(names=True),
    "trained": lambda one: Checked(lambda label, text: runs.model(label, text, one.keywords[0]), "NAME"),
    "trials": lambda one: Number(f"[1, {max_episodes()}]"),
}


def flag_of(one: Option) -> Flag:
    """Return the flag of a program's option; without it the program's own default holds."""
    if one.type is bool:
        name, help = (f"no-{one.flag}", one.negated) if one.default else (one.flag, one.summary)
        return Flag(name, help, default=False, **_group(one))
    if one.kind:
        values: Values = KINDS[one.kind](one)
    elif one.choices:
        values = OneOf(tuple(map(str, one.choices)))
    elif one.type in (int, float):
        values = Number(one.within or "(-inf, inf)", one.type, one.metavar or "N")
    elif one.pattern:
        values = Like(one.pattern, one.expected, one.metavar or "TEXT", one.keywords)
    else:
        values = Text(one.metavar or "TEXT")
    number = isinstance(one.default, (int, float)) and not isinstance(one.default, bool)
    default = f"{one.default:.12g}" if number else str(one.default) if one.default not in (None, MISSING) else ""
    return Flag(
        one.flag, one.summary, values, default_help=one.default_help or default, optional_value=one.optional_value,
        **_group(one),
    )  # fmt: skip


def _group(one: Option) -> dict[str, bool]:
    return {"advanced": one.group == "advanced"}


def program_flags(*places: str, only: Collection[str] = (), without: Collection[str] = ()) -> list[Flag]:
    """Return the flags of a program's options.

    places: MODULE:CLASS of each program that the task may run; an option of several is one flag. only, without: names
    of options.
    """
    flags: dict[str, Flag] = {}
    for place in places:
        for name, one in borrowed.options(place).items():
            if one.group != "internal" and name not in without and (not only or name in only):
                flags[name] = _merged(flags[name], flag_of(one)) if name in flags else flag_of(one)
    return list(flags.values())


def _merged(first: Flag, other: Flag) -> Flag:
    """Return a flag of several programs: what one of them takes is valid; a default they differ in is left out."""
    values, theirs = first.values, other.values
    if isinstance(values, (OneOf, Existing)) and type(values) is type(theirs):
        values = replace(values, known=tuple(dict.fromkeys((*values.known, *theirs.known))))
    same = other.default_help in ("", first.default_help)
    return replace(first, values=values, default_help=first.default_help if same else "")


def suite_values(*more: str) -> OneOf:
    """Return the names of suites as values. more: further words."""
    return OneOf((*more, *manifests.suites()), aliases=manifests.suite_aliases())


def model_word(program: str) -> Flag:
    """Return the word that names a model which has that program: getter, trainer, verifier …"""
    names = [name for name, one in manifests.models().items() if getattr(one, program)]
    return word("model", " or ".join(names), OneOf(tuple(names)))


def places(programs: Mapping[str, Model] | Mapping[str, Benchmark], task: str) -> list[str]:
    """Return where the options of what a task runs are defined, by the manifests of models or benchmarks."""
    return [one.options[task] for one in programs.values() if task in one.options]


def flags_of(values: dict[str, object]) -> list[str]:
    """Return a program's flags: {"max_steps": 5, "resume": True} → --max-steps 5 --resume."""
    flags: list[str] = []
    for name, value in values.items():
        if value is not None and value is not False:
            flags += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return flags


# --- flags of several tasks ---------------------------------------------------------------------------------

RUNTIME = Flag(
    "runtime",
    "docker, local or auto: containers where an engine answers and the images are built, else processes",
    OneOf(("auto", "docker", "local")),
    default="auto",
)
NO_CHECK = Flag("no-check", "begin without the doctor's few checks", default=False)
DRY_RUN = Flag("dry-run", "print the commands, change nothing", default=False)
GPU = Flag(
    "gpu",
    "auto, none, all, or devices as nvidia-smi has them: 0 or 0,1, or UUIDs",
    Checked(_devices, "WHICH"),
    default_help="VLALAB_<SERVICE>_GPU, else auto",
)
