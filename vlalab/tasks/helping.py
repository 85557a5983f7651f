"""What `./lab` alone and `./lab TASK --help` print, within the terminal's width."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from vlalab.tasks.flags import LabTask

FIRST_STEPS = "First: ./lab eval libero_goal --trials 2; ./lab up ui    Help: ./lab TASK --help"
WIDEST = 110  # a line that is longer is hard to read
LEAST_FOR_MEANING = 24  # columns; with less beside it, a meaning stands underneath

Row = tuple[str, str]  # a name, or a command, and what it means


def width() -> int:
    """Returns how wide a line may be, in columns."""
    return min(shutil.get_terminal_size().columns, WIDEST)


def task_list(groups: Mapping[str, Sequence[LabTask]]) -> str:
    """Returns every task with a few words, in groups; 24 rows show all of it, and the prompt below."""
    lines, first_steps = _side_by_side(groups), _folded(FIRST_STEPS)
    if max(map(len, lines)) > width():
        return "\n".join(_stacked([*_one_below_the_other(groups), first_steps]))
    return "\n".join([*lines, *first_steps])


def _side_by_side(groups: Mapping[str, Sequence[LabTask]]) -> list[str]:
    """Returns each group's lines: its name on the left, then its tasks in two columns, to be read downwards."""
    label = max(map(len, groups)) + 2
    name = max(len(task.name) for tasks in groups.values() for task in tasks)
    cell = name + 1 + max(len(task.short) for tasks in groups.values() for task in tasks) + 2
    found: list[str] = []
    for group, tasks in groups.items():
        cells = [f"{task.name:<{name}} {task.short}" for task in tasks]
        half = (len(cells) + 1) // 2
        rows = zip_longest(cells[:half], cells[half:], fillvalue="")
        lines = [f"{'':<{label}}{one:<{cell}}{other}".rstrip() for one, other in rows]
        found += [f"{group:<{label}}{lines[0][label:]}", *lines[1:]]
    return found


def _one_below_the_other(groups: Mapping[str, Sequence[LabTask]]) -> list[list[str]]:
    return [[f"{name}:", *(f"  {task.name:<11} {task.short}" for task in tasks)] for name, tasks in groups.items()]


def task_help(task: LabTask) -> str:
    """Returns a task's help: its words, what it does, examples, its flags in the order of use, what else it knows."""
    plain = " ".join(f"[{flag.shown}]" if flag.variadic else flag.shown for flag in task.flags if flag.is_word)
    usage = " ".join(word for word in ("Usage: ./lab", task.name, plain, "[--flags]" if task.flags else "") if word)
    about, examples = _documented(task)
    blocks = [
        [usage],
        _folded(about),
        _examples(examples),
        _hanging([(one.shown, one.explained) for one in task.flags if not one.advanced]),
    ]
    if rare := [(one.shown, one.explained) for one in task.flags if one.advanced]:
        blocks.append(["Advanced:", *_hanging(rare)])
    for title, rows in task.more().items():
        blocks.append([*_folded(title), *_hanging(rows)])
    return "\n".join(_stacked([block for block in blocks if block]))


def _documented(task: LabTask) -> tuple[str, list[Row]]:
    """Returns a task's sentence, and its examples: a command, and what it is for behind two blanks or more."""
    sentence, *lines = (task.__doc__ or "").strip().splitlines()
    rows = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines if line.strip()]
    return sentence, [(row[0], row[1] if len(row) > 1 else "") for row in rows]


def _examples(rows: Sequence[Row]) -> list[str]:
    """Returns the lines of examples; a command that is too long goes on behind a backslash, to be copied as it is."""
    explained = [command for command, purpose in rows if purpose]
    wide = max((len(command) for command in explained), default=0)
    lines: list[str] = []
    for command, purpose in rows:
        if purpose and width() - wide - 4 >= LEAST_FOR_MEANING:
            lines += _hanging([(command, purpose)], wide)
        else:
            parts = textwrap.wrap(command, width() - 4, break_long_words=False, break_on_hyphens=False)
            lines += [f"{'  ' if at == 0 else '      '}{part}" for at, part in enumerate(parts)]
            lines[-len(parts) : -1] = [f"{line} \\" for line in lines[-len(parts) : -1]]
            lines += _folded(purpose, indent=" " * 6)
    return lines


def _hanging(rows: Sequence[Row], wide: int = 0) -> list[str]:
    """Returns two columns; what does not fit into a line of the second goes on below its beginning."""
    wide = wide or min(max((len(name) for name, _ in rows), default=0), 26)
    lines: list[str] = []
    for name, meaning in rows:
        folded = _folded(meaning, indent=" " * (wide + 4)) or [""]
        if len(name) > wide:
            lines += [f"  {name}", *folded]
        else:
            lines += [f"  {name:<{wide}}  {folded[0].strip()}".rstrip(), *folded[1:]]
    return lines


def _folded(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, width(), initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _stacked(blocks: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of all blocks, with an empty one between two."""
    return [line for at, block in enumerate(blocks) for line in ([""] * (at > 0) + list(block))]
