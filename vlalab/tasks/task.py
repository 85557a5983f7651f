"""A task: a function, its flags, and the command that is useful after it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from vlalab.host.console import log_info
from vlalab.tasks.flags import SHARED, Flag, flags_of_function

FlagValues = Mapping[str, object]  # parameter name → value
Tables = Callable[[], dict[str, list[tuple[str, str]]]]  # title → rows of (name, meaning)


@dataclass(eq=False)
class LabTask:
    """A function that `./lab NAME` calls with its flags' values by name: "--max-steps 5" arrives as max_steps=5.

    short: its description in the list of tasks. next: the command to suggest afterwards. shared: names of flags
    that several tasks have. options: the flags of the programs that it runs. tables: shown at the end of its help.
    """

    function: Callable[..., None]
    short: str
    next: str | Callable[[FlagValues], str]
    shared: str
    options: Callable[[], list[Flag]]
    tables: Tables
    name: str

    @cached_property
    def flags(self) -> list[Flag]:
        """Its arguments and flags in the order of its help: its own, its programs', shared ones, advanced ones."""
        flags = [*flags_of_function(self.function), *self.options()]
        flags += [SHARED[name] for name in self.shared.split() if name not in {flag.flag for flag in flags}]
        return sorted(flags, key=lambda flag: ("word", "common", "advanced").index(flag.group))

    def run(self, typed: Mapping[str, list[str] | bool]) -> None:
        """Read every flag, run the doctor's quick checks unless --no-check is given, call the function.

        On a terminal, print the command to run next, except after a dry run.
        """
        values: dict[str, object] = {}
        for flag in self.flags:
            texts = typed[flag.name]
            values[flag.name] = texts if isinstance(texts, bool) else flag.read(texts)
        if not values.pop("no_check", True) and not values.get("dry_run"):
            from vlalab.commands import doctor  # slow to import, and not needed by tasks without checks

            doctor.require(self.name, values)
        self.function(**values)
        if sys.stderr.isatty() and not values.get("dry_run"):
            log_info(f"next: {self.next_command(values)}")

    def next_command(self, values: FlagValues) -> str:
        """Return the command to run next; values that the caller did not give are placeholders in capitals."""
        template = self.next if isinstance(self.next, str) else self.next(values)
        texts = {flag.name: flag.usage if flag.is_positional else flag.values.metavar for flag in self.flags}
        for name, value in values.items():
            if value:
                texts[name] = shlex.join(map(str, value if isinstance(value, list) else [value]))
        return template.format_map(texts)


def task(
    short: str,
    next: str | Callable[[FlagValues], str],
    shared: str = "",
    options: Callable[[], list[Flag]] = list,
    *,
    tables: Tables = dict,
    name: str = "",
) -> Callable[[Callable[..., None]], LabTask]:
    """Return a decorator that makes a task of a function; the arguments are those of `LabTask`."""
    return lambda function: LabTask(function, short, next, shared, options, tables, name or function.__name__)


def finish(code: int) -> None:
    """Exit with that code unless it is 0."""
    if code:
        sys.exit(code)
