"""The command line: finds the task, parses its words and flags with argparse, prints its help."""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, NoReturn

from vlalab.description import environment_file
from vlalab.host import borrowed
from vlalab.host.borrowed import endings
from vlalab.host.console import LabError, require_known
from vlalab.tasks import GROUPS
from vlalab.tasks.task import LabTask

TASKS = {task.name: task for tasks in GROUPS.values() for task in tasks}
FIRST_STEPS = "First: ./lab eval libero_goal --trials 2; ./lab up ui    Help: ./lab TASK --help"
MAX_WIDTH = 110  # columns; longer lines are hard to read
# Flags of the scripts that course material runs, each with what `./lab` has instead (docs/handout.md).
FOREIGN_FLAGS = {
    "action_dim": "a policy's /v1/info states the sizes of its actions",
    "center_crop": "the profile crops where the checkpoint was trained so: ./lab eval SUITE --profile NAME",
    "data_config": "the robot is the flag --embodiment of ./lab finetune",
    "dataset_name": "the data set is the flag --dataset of ./lab finetune",
    "dataset_path": "the data set is the flag --dataset of ./lab finetune",
    "embodiment_tag": "the robot is the flag --embodiment of ./lab finetune",
    "load_in_4bit": "use --quant fp4 of ./lab up (fp4 is what load_in_4bit=True means)",
    "load_in_8bit": "use --quant int8 of ./lab up",
    "logdir": "./lab tensorboard shows logs/tensorboard on the volume",
    "model_family": "the policy is the flag --policy of ./lab eval",
    "model_path": "the model is the flag --checkpoint of ./lab up",
    "num_gpus": "use --gpus of ./lab finetune",
    "num_trials_per_task": "use --trials of ./lab eval",
    "output_dir": "results go to the volume; name them with --name of ./lab finetune",
    "pretrained_checkpoint": "the model is the flag --checkpoint of ./lab up",
    "run_id_note": "use --run-id of ./lab eval",
    "task_suite_name": "the suite is a word of its own: ./lab eval SUITE",
    "use_wandb": "./lab report and ./lab tensorboard show results; nothing is sent elsewhere",
}
# zsh runs it too, by bashcompinit.
COMPLETION_SCRIPT = """[ -z "$ZSH_VERSION" ] || { autoload -U +X bashcompinit && bashcompinit; }
_complete_lab() {
    local words="$("${COMP_WORDS[0]}" --complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)"
    COMPREPLY=( $(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}") )
}
complete -o default -F _complete_lab lab invoke inv"""


class Parser(argparse.ArgumentParser):
    """The parser of a task's words and flags, which prints its help too."""

    def __init__(self, task: LabTask) -> None:
        words = [flag.shown if flag.is_needed else f"[{flag.shown}]" for flag in task.flags if flag.is_word]
        super().__init__(
            usage=" ".join(["./lab", task.name, *words, *(["[--flags]"] if task.flags else [])]),
            description=description(task),
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, 2, 30, width()),
            add_help=False,
            allow_abbrev=False,
        )
        self.task = task
        groups = {"advanced": self.add_argument_group("Advanced")}
        groups |= dict.fromkeys(("word", "common"), self.add_argument_group())
        self._action_groups.reverse()
        for flag in task.flags:
            names: list[str] = [f"--{flag.flag}"]
            more: dict[str, Any] = {"dest": flag.name}
            if flag.is_word:
                names, more = [flag.name], {"nargs": "*" if flag.is_several else None if flag.is_needed else "?"}
                more["metavar"] = flag.shown
            elif flag.type is bool:
                more["action"] = "store_true"
            else:
                more |= {"action": "append", "metavar": flag.values.metavar}
                more |= {"nargs": "?", "const": True} if flag.optional_value else {}
            groups[flag.group].add_argument(*names, help=flag.help.replace("%", "%%"), **more)

    def typed(self, argv: Sequence[str]) -> dict[str, list[Any] | bool]:
        """Return the texts that were typed for each flag, or whether a switch was. Raise LabError for others."""
        found, unknown = self.parse_known_intermixed_args(argv)
        if unknown:
            word, name = next((one for one in unknown if one.startswith("-")), unknown[0]), self.task.name
            foreign = word.partition("=")[0].lstrip("-").replace("-", "_")
            if not word.startswith("-"):
                self.error(f"'{word}' is a word too many")
            if foreign in FOREIGN_FLAGS:
                self.error(f"{name} has no flag '{word}': {FOREIGN_FLAGS[foreign]}")
            close = difflib.get_close_matches(word, [f"--{flag.flag}" for flag in self.task.flags], 1)
            self.error(f"{name} has no flag '{word}'" + (f"; did you mean '{close[0]}'?" if close else ""))
        values = {name: [] if value is None else value for name, value in vars(found).items()}
        return {name: value if isinstance(value, (list, bool)) else [value] for name, value in values.items()}

    def error(self, message: str) -> NoReturn:
        """Raise LabError for a word or a flag that is wrong."""
        if missing := [flag for flag in self.task.flags if flag.is_word and flag.shown in message.split(": ")[-1]]:
            message = f"{self.task.name} needs " + "; ".join(f"{flag.shown} ({flag.help})" for flag in missing)
        end = "" if message.endswith("?") else "."
        raise LabError(f"{message}{end} See: ./lab {self.task.name} --help")

    def full_help(self) -> str:
        """Return the task's help, with the tables that it ends with."""
        for title, rows in self.task.tables().items():
            table = self.add_argument_group(title)
            for name, meaning in rows:
                table.add_argument("row", metavar=name, help=meaning.replace("%", "%%"))
        return self.format_help()


def width() -> int:
    """Return how wide a line may be, in columns."""
    return min(shutil.get_terminal_size().columns, MAX_WIDTH)


def description(task: LabTask) -> str:
    """Return a task's sentence and its examples; what one is for stands next to the command where there is room."""
    sentence, *lines = (task.function.__doc__ or "").strip().splitlines()
    rows = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines if line.strip()]
    column = max((len(command) for command, *purpose in rows if purpose), default=0)
    text = [*textwrap.wrap(sentence, width()), ""]
    for command, *purpose in rows:
        if not purpose:
            text.append(f"  {command}")
        elif max(4 + column + len(row[1]) for row in rows if row[1:]) <= width():
            text.append(f"  {command:<{column}}  {purpose[0]}")
        else:
            text += [
                f"  {command}",
                *textwrap.wrap(*purpose, width(), initial_indent=" " * 6, subsequent_indent=" " * 6),
            ]
    return "\n".join(text)


def task_list(groups: Mapping[str, Sequence[LabTask]]) -> str:
    """Return every task with a few words, in groups; two columns where there is room, so that 24 rows show all."""
    tasks = [task for group in groups.values() for task in group]
    title, name, short = (max(map(len, texts)) for texts in (groups, TASKS, [task.short for task in tasks]))
    columns = 2 if title + 2 * (name + short) + 6 <= width() else 1
    lines = []
    for group, members in groups.items():
        cells = [f"{task.name:<{name}} {task.short:<{short}}" for task in members]
        rows = -(-len(cells) // columns)
        for at, row in enumerate(zip_longest(*(cells[k : k + rows] for k in range(0, len(cells), rows)), fillvalue="")):
            lines.append(f"{group if at == 0 else '':<{title}}  {'  '.join(row)}".rstrip())
    return "\n".join([*lines, *textwrap.wrap(FIRST_STEPS, width())])


def candidates(words: Sequence[str]) -> list[str]:
    """Return what the last of these words may be: a task, a flag of the task, or a value of the flag before it.

    words: a command line without the program; the last one is incomplete, or empty.
    """
    if len(words) < 2:
        return sorted(TASKS)
    last, before = words[-1], words[-2]
    flags = TASKS[words[0]].flags if words[0] in TASKS else []
    for flag in flags:
        if before == f"--{flag.flag}" and flag.type is not bool and not (flag.optional_value and last.startswith("-")):
            return list(flag.values.known)
    if last.startswith("-"):
        return [f"--{flag.flag}" for flag in flags if not flag.is_word]
    return [value for flag in flags if flag.is_word for value in flag.values.known]


def run(argv: Sequence[str]) -> None:
    """Run the task of a command line without the program, or print a help. Raise LabError for what is wrong in it."""
    name, *rest = argv or ["--list"]
    if name in ("-V", "--version"):
        print(f"lab {borrowed.version()}")
    elif name == "--print-completion-script":
        print(COMPLETION_SCRIPT)
    elif name == "--complete":
        print("\n".join(candidates(rest[1:])))
    elif name in ("-l", "--list", "-h", "--help") or (name == "help" and not rest):
        print(task_list(GROUPS))
    elif name == "help" or {"-h", "--help"} & set(rest):
        name = rest[0] if name == "help" else name
        require_known("task", [name], sorted(TASKS))
        print(Parser(TASKS[name]).full_help())
    else:
        require_known("task", [name], sorted(TASKS))
        TASKS[name].run(Parser(TASKS[name]).typed(rest))


def main() -> None:
    """Run the command line and exit with its code."""
    endings.run(_main, expected=(LabError,), prefix="lab: ")


def _main() -> None:
    environment_file.take_in()
    run(sys.argv[1:])
