"""Flags as data: what each is called, takes and means, and a task made of such flags and a function.

A task's function gets every flag's value by name, read and checked: "--max-steps 5" arrives as max_steps=5.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

from invoke import Argument, Context, Exit, Task

from vlalab.description import gpus
from vlalab.tasks import following
from vlalab.tasks.values import Checked, Like, OneOf, Ranges, Several, Text, Values

REQUIRED = object()  # as a word's default: the task does nothing without it


@dataclass(frozen=True)
class Flag:
    """A flag of a task, or a plain word after it (`is_word`). A default of False or True makes a switch."""

    name: str  # as typed, without its dashes
    help: str
    values: Values = Text()  # noqa: RUF009  frozen
    default: object = None
    otherwise: str = ""  # what happens without it, in words, where the default does not say so
    is_word: bool = False
    gathers: bool = False  # all plain words after the task
    may_stand_alone: bool = False  # without a value it arrives as True
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
            return self.values.shown if self.gathers else self.name.upper()
        if self.is_switch:
            return f"--no-{self.name}" if self.default else f"--{self.name}"
        return f"--{self.name} [{self.values.shown}]" if self.may_stand_alone else f"--{self.name} {self.values.shown}"

    @property
    def explained(self) -> str:
        """What help says of it: its meaning, and what happens without it."""
        default = self.otherwise or (str(self.default) if self.default and isinstance(self.default, (str, int)) else "")
        return self.help if self.is_switch or not default else f"{self.help}; default: {default}"

    def argument(self) -> Argument:
        """Returns it as Invoke's parser takes it; values arrive as text."""
        return Argument(
            name=self.name,
            attr_name=self.variable if self.variable != self.name else None,
            kind=bool if self.is_switch else str,
            default=self.default if self.is_switch else None,
            help=self.help,
            positional=self.is_word and not self.gathers,
            optional=self.may_stand_alone,
        )

    def read(self, typed: object) -> object:
        """Returns the value of what was typed, None meaning nothing. Raises LabError for one that makes no sense."""
        if typed is None:
            return self.default
        return self.values.read(self.label, typed) if isinstance(typed, str) else typed

    def but(self, **changes: object) -> Flag:
        """Returns it with some of it changed, for a task where it means a little more."""
        return replace(self, **changes)


def word(name: str, help: str, values: Values = Text(), **more: object) -> Flag:  # noqa: B008  frozen
    """Returns a plain word that a task needs."""
    return Flag(name, help, values, REQUIRED, is_word=True, **more)


def words(name: str, help: str, values: Values, default: object = ()) -> Flag:
    """Returns the list of all plain words after a task; none are fine."""
    return Flag(name, help, values, default, is_word=True, gathers=True)


def advanced(*flags: Flag) -> tuple[Flag, ...]:
    """Returns flags that few need; help shows them last, under a title of their own."""
    return tuple(replace(flag, advanced=True) for flag in flags)


More = Callable[[], dict[str, list[tuple[str, str]]]]  # title → rows of a name and what it means


class LabTask(Task):
    """Invoke's task with flags that are data."""

    def __init__(self, body: Callable[..., None], short: str, flags: tuple[Flag, ...], name: str, more: More) -> None:
        self.short, self.flags, self.more = short, flags, more
        super().__init__(_reading(body, flags, name), name=name, positional=(), auto_shortflags=False)

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        """Returns the arguments of Invoke's parser, made anew since the parser writes into them."""
        return [flag.argument() for flag in self.flags]

    def flag(self, name: str) -> Flag:
        """Returns the flag of that name, with dashes or with underscores."""
        return next(flag for flag in self.flags if flag.variable == name.replace("-", "_"))

    @property
    def gathered(self) -> Flag | None:
        """The list of plain words, where the task has one."""
        return next((flag for flag in self.flags if flag.gathers), None)


def _reading(body: Callable[..., None], flags: tuple[Flag, ...], name: str) -> Callable[..., None]:
    """Returns the function that Invoke calls: it reads and checks every flag before the task's own begins.

    One with NO_CHECK among its flags is begun after the doctor's few checks for it. After a task that went well it says
    what is useful next.
    """

    @functools.wraps(body)
    def run(c: Context, **typed: object) -> None:
        given = {flag.variable: flag.read(typed.get(flag.variable)) for flag in flags}
        if not given.pop(NO_CHECK.variable, True) and not given.get(DRY_RUN.variable):
            _examine(name, given)
        body(**given)
        following.tell(name, given)

    return run


def _examine(name: str, given: dict[str, object]) -> None:
    from vlalab.commands import examining  # what a task without checks need not load

    examining.require(name, given)


def task(short: str, *flags: Flag, name: str = "", more: More = dict) -> Callable[[Callable[..., None]], LabTask]:
    """Returns the decorator that makes a task of a function.

    short: what it does, for the list of all tasks. more: what its help says below the flags.
    """
    return lambda body: LabTask(body, short, flags, name or body.__name__, more)


def tasks_of(module: object) -> list[LabTask]:
    """Returns a group's tasks, in the order in which they are written."""
    return [one for one in vars(module).values() if isinstance(one, LabTask)]


def flags_of(values: dict[str, object]) -> list[str]:
    """Returns the flags for what was given: {"max_steps": 5, "resume": True} → --max-steps 5 --resume."""
    flags: list[str] = []
    for name, value in values.items():
        if value is not None and value is not False:
            flags += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return flags


def finish(code: int) -> None:
    """Ends the task with that exit code."""
    if code:
        raise Exit(code=code)


# --- flags of several tasks ---------------------------------------------------------------------------------

RUNTIME = Flag(
    "runtime",
    "docker, local or auto: containers where an engine answers and the images are built, else processes",
    OneOf(("auto", "docker", "local")),
    default="auto",
)
NO_CHECK = Flag("no-check", "begin without the doctor's few checks", default=False)
DRY_RUN = Flag("dry-run", "print the commands, change nothing", default=False)


def _devices(label: str, text: str) -> str:
    return text if text in ("auto", "none", "all") else ",".join(gpus.devices(text, label))


GPU = Flag(
    "gpu",
    "auto, none, all, or devices as nvidia-smi has them: 0 or 0,1, or UUIDs",
    Checked(_devices, "WHICH"),
    otherwise="VLALAB_<SERVICE>_GPU, else auto",
)
DEVICE_NAMES = ("auto", "cpu", "cuda", "mps")
DEVICE = Flag(
    "device",
    "auto, cpu, cuda, cuda:1 or mps",
    Like(r"cuda:\d+", "auto, cpu, cuda, cuda:1 or mps", "WHICH", DEVICE_NAMES),
    otherwise="auto",
)
