"""The command line: find the task, parse its arguments with argparse, print its help."""

from __future__ import annotations

import argparse
import difflib
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from vlalab.description import environment_file
from vlalab.host import shared_code
from vlalab.host.console import LabError, check_choices
from vlalab.host.shared_code import entrypoint
from vlalab.tasks import GROUPS
from vlalab.tasks.task import LabTask

TASKS = {task.name: task for tasks in GROUPS.values() for task in tasks}
FIRST_STEPS = "First: ./lab eval libero_goal --trials 2; ./lab up ui    Help: ./lab TASK --help"
MAX_WIDTH = 110  # columns; longer lines are hard to read
# Flags of upstream scripts that the course material uses → the equivalent in `./lab` (docs/handout.md).
FOREIGN_FLAGS = {
    "action_dim": "the policy reports its action dimensions at /v1/info",
    "center_crop": "the profile sets cropping: ./lab eval SUITE --profile NAME",
    "data_config": "use --embodiment of ./lab finetune",
    "dataset_name": "use --dataset of ./lab finetune",
    "dataset_path": "use --dataset of ./lab finetune",
    "embodiment_tag": "use --embodiment of ./lab finetune",
    "load_in_4bit": "use --quant fp4 of ./lab up (the same as load_in_4bit=True)",
    "load_in_8bit": "use --quant int8 of ./lab up",
    "logdir": "run ./lab tensorboard; it reads logs/tensorboard on the volume",
    "model_family": "use --policy of ./lab eval",
    "model_path": "use --checkpoint of ./lab up",
    "num_gpus": "use --gpus of ./lab finetune",
    "num_trials_per_task": "use --trials of ./lab eval",
    "output_dir": "results are stored on the volume; set their name with --name of ./lab finetune",
    "pretrained_checkpoint": "use --checkpoint of ./lab up",
    "run_id_note": "use --run-id of ./lab eval",
    "task_suite_name": "give the suite as an argument: ./lab eval SUITE",
    "use_wandb": "use ./lab report and ./lab tensorboard; results are not uploaded",
}
# Flags that were renamed and stay accepted: old → new.
OLD_FLAGS = {"--stay": "--foreground"}
# Works in zsh too, through bashcompinit.
COMPLETION_SCRIPT = """[ -z "$ZSH_VERSION" ] || { autoload -U +X bashcompinit && bashcompinit; }
_complete_lab() {
    local words="$("${COMP_WORDS[0]}" --complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)"
    COMPREPLY=( $(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}") )
}
complete -o default -F _complete_lab lab invoke inv"""


class Parser(argparse.ArgumentParser):
    """The argument parser of one task."""

    def __init__(self, task: LabTask) -> None:
        positionals = [flag.usage if flag.is_needed else f"[{flag.usage}]" for flag in task.flags if flag.is_positional]
        super().__init__(
            usage=" ".join(["./lab", task.name, *positionals, *(["[--flags]"] if task.flags else [])]),
            description=description(task),
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, 2, 30, width()),
            add_help=False,
            allow_abbrev=False,
        )
        self.task = task
        common, advanced = self.add_argument_group(), self.add_argument_group("Advanced")
        for flag in task.flags:
            names: list[str] = [f"--{flag.flag}"]
            more: dict[str, Any] = {"dest": flag.name}
            if flag.is_positional:
                names, more = [flag.name], {"nargs": "*" if flag.is_several else None if flag.is_needed else "?"}
                more["metavar"] = flag.usage
            elif flag.type is bool:
                more["action"] = "store_true"
            else:
                more |= {"action": "append", "metavar": flag.values.metavar}
                more |= {"nargs": "?", "const": True} if flag.optional_value else {}
            group = advanced if flag.group == "advanced" else common
            group.add_argument(*names, help=flag.help.replace("%", "%%"), **more)

    def typed(self, argv: Sequence[str]) -> dict[str, list[Any] | bool]:
        """Return the texts typed for each flag; for a switch, a bool. Raise LabError for unknown arguments."""
        namespace, unknown = self.parse_known_intermixed_args(argv)
        if unknown:
            text = next((argument for argument in unknown if argument.startswith("-")), unknown[0])
            if not text.startswith("-"):
                self.error(f"unexpected argument '{text}'")
            name, problem = text.partition("=")[0].lstrip("-"), f"{self.task.name} has no flag '{text}'"
            if advice := FOREIGN_FLAGS.get(name.replace("-", "_")):
                self.error(f"{problem}: {advice}")
            for flag in self.task.flags:
                if flag.is_positional and flag.name == name:
                    self.error(f"{problem}; give its value without a flag: {flag.help}")
            flags = [f"--{flag.flag}" for flag in self.task.flags if not flag.is_positional]
            close = difflib.get_close_matches(text, flags, 1)
            self.error(problem + (f"; did you mean '{close[0]}'?" if close else ""))
        values = {name: [] if value is None else value for name, value in vars(namespace).items()}
        return {name: value if isinstance(value, (list, bool)) else [value] for name, value in values.items()}

    def error(self, message: str) -> NoReturn:
        """Raise LabError for an invalid argument; argparse names missing positional arguments after a colon."""
        named = message.split(": ")[-1]
        if missing := [flag for flag in self.task.flags if flag.is_positional and flag.usage in named]:
            message = f"{self.task.name} needs " + "; ".join(f"{flag.usage} ({flag.help})" for flag in missing)
        end = "" if message.endswith("?") else "."
        raise LabError(f"{message}{end} See: ./lab {self.task.name} --help")

    def full_help(self) -> str:
        """Return the task's help, its tables at the end."""
        for title, rows in self.task.tables().items():
            table = self.add_argument_group(title)
            for name, meaning in rows:
                table.add_argument("row", metavar=name, help=meaning.replace("%", "%%"))
        return self.format_help()


def width() -> int:
    """Return the maximum line width, in columns."""
    return min(shutil.get_terminal_size().columns, MAX_WIDTH)


def description(task: LabTask) -> str:
    """Return a task's description and examples; explanations are next to the commands if they fit."""
    sentence, *lines = (task.function.__doc__ or "").strip().splitlines()
    rows = [(*re.split(r"\s{2,}", line.strip(), maxsplit=1), "")[:2] for line in lines if line.strip()]
    column = max((len(command) for command, purpose in rows if purpose), default=0)
    is_narrow = max((4 + column + len(purpose) for _, purpose in rows), default=0) > width()
    text = [*textwrap.wrap(sentence, width()), ""]
    for command, purpose in rows:
        text.append(f"  {command}" if is_narrow else f"  {command:<{column}}  {purpose}".rstrip())
        if is_narrow:
            text += textwrap.wrap(purpose, width(), initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(text)


def task_list(groups: Mapping[str, Sequence[LabTask]]) -> str:
    """Return all tasks and their short descriptions by group, in two columns if they fit, so 25 rows show all."""
    tasks = [task for group in groups.values() for task in group]
    title, name, short = (max(map(len, texts)) for texts in (groups, TASKS, [task.short for task in tasks]))
    columns = 2 if title + 2 * (name + short) + 6 <= width() else 1
    lines = []
    for group, members in groups.items():
        cells = [f"{task.name:<{name}} {task.short:<{short}}" for task in members]
        rows = math.ceil(len(cells) / columns)
        for index in range(rows):
            heading = group if index == 0 else ""
            lines.append(f"{heading:<{title}}  {'  '.join(cells[index::rows])}".rstrip())
    return "\n".join([*lines, *textwrap.wrap(FIRST_STEPS, width())])


def candidates(arguments: Sequence[str]) -> list[str]:
    """Return the completions of the last argument: a task, a flag of the task, or a value of the preceding flag.

    arguments: a command line without the program; the last one is incomplete or empty.
    """
    if len(arguments) < 2:
        return sorted(TASKS)
    name, last, previous = arguments[0], arguments[-1], arguments[-2]
    flags = TASKS[name].flags if name in TASKS else []
    for flag in flags:
        stands_alone = flag.type is bool or (flag.optional_value and last.startswith("-"))
        if previous == f"--{flag.flag}" and not stands_alone:
            return list(flag.values.choices)
    if last.startswith("-"):
        return [f"--{flag.flag}" for flag in flags if not flag.is_positional]
    return [value for flag in flags if flag.is_positional for value in flag.values.choices]


def run(argv: Sequence[str]) -> None:
    """Run the task of a command line (without the program), or print help. Raise LabError for invalid arguments."""
    name, *rest = argv or ["--list"]
    if name in ("-V", "--version"):
        print(f"lab {shared_code.version()}")
    elif name == "--print-completion-script":
        print(COMPLETION_SCRIPT)
    elif name == "--complete":
        print("\n".join(candidates(rest[1:])))
    elif name in ("-l", "--list", "-h", "--help") or (name == "help" and not rest):
        print(task_list(GROUPS))
    elif name == "help" or {"-h", "--help"} & set(rest):
        name = rest[0] if name == "help" else name
        check_choices("task", [name], sorted(TASKS))
        print(Parser(TASKS[name]).full_help())
    else:
        check_choices("task", [name], sorted(TASKS))
        TASKS[name].run(Parser(TASKS[name]).typed([OLD_FLAGS.get(argument, argument) for argument in rest]))


def main() -> None:
    """Run the command line and exit with its status."""

    def call() -> None:
        environment_file.load()
        run(sys.argv[1:])

    entrypoint.run(call, expected=(LabError,), prefix="lab: ")
