"""The command line: Invoke's program with the tasks of tasks.py, a friendlier list and plain words after a task.

Invoke takes one value per positional argument. Here one flag of a task may gather all plain words after it:
`./lab up oracle random` is `./lab up --names=oracle,random`.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType

from invoke import Collection, Exit, ParseError, Program

from vlalab.description import environment_file
from vlalab.host import borrowed
from vlalab.host.borrowed import endings
from vlalab.host.console import LabError, require_known
from vlalab.host.paths import ROOT
from vlalab.tasks import helping
from vlalab.tasks.flags import Flag, LabTask
from vlalab.tasks.values import Several, Values

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


def load_tasks() -> ModuleType:
    """Returns the module tasks.py of the repository."""
    spec = importlib.util.spec_from_file_location("tasks", ROOT / "tasks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["tasks"] = module
    spec.loader.exec_module(module)
    return module


def gather_words(argv: list[str], variadic: str, flags: Iterable[Flag]) -> list[str]:
    """Return argv, task name first, with the plain words after the task as the value of the flag `variadic`."""
    takes_value = {f"--{one.name}": one.optional_value for one in flags if not one.is_switch}
    plain: list[str] = []
    others: list[str] = []
    rest = argv[1:]
    while rest:
        token = rest.pop(0)
        if not token.startswith("-"):
            plain.append(token)
            continue
        others.append(token)
        if rest and token in takes_value and not (takes_value[token] and rest[0].startswith("-")):
            others.append(rest.pop(0))
    return [argv[0], *([f"--{variadic}={','.join(plain)}"] if plain else []), *others]


def join_repeated(argv: list[str], flags: dict[str, bool]) -> list[str]:
    """Returns argv with the values of a flag that is typed more than once as one list: `--set a=1 --set b=2`.

    flags: those that take a value → whether that is a list. Raises LabError where another one is given twice.
    """
    joined: list[str] = []
    places: dict[str, int] = {}
    rest = list(argv)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        alone = not equals and (not rest or rest[0].startswith("--"))
        if name not in flags or alone:
            joined.append(name + equals + value)
            continue
        words = [name + equals + value] if equals else [name, value := rest.pop(0)]
        if name not in places:
            joined += words
            places[name] = len(joined) - 1
        elif flags[name]:
            joined[places[name]] += f",{value}"
        else:
            raise LabError(f"{name} is given twice, the second time as '{value}'; give it once")
    return joined


class Lab(Program):
    """Invoke's program for a fixed set of tasks."""

    def __init__(self, tasks: ModuleType) -> None:
        super().__init__(name="lab", binary="./lab", namespace=tasks.namespace, version=borrowed.version())
        self.groups: dict[str, list[LabTask]] = tasks.GROUPS

    def normalize_argv(self, argv: list[str] | None) -> None:
        """Gathers plain words, and turns `help` and a task's -h into Invoke's --help."""
        super().normalize_argv(argv)
        arguments = self.argv[1:]
        if arguments[:1] == ["help"] or {"--help", "-h"} & set(arguments[1:]):
            arguments = ["--help", *[a for a in arguments if a not in ("help", "--help", "-h")][:1]]
        name = arguments[0] if arguments else "--list"
        if not name.startswith("-"):
            require_known("task", [name], sorted(self.namespace.tasks))
            task = self.namespace[name]
            if task.variadic:
                arguments = gather_words(arguments, task.variadic.name, task.flags)
            is_list = {f"--{one.name}": one.is_list for one in task.flags if not one.is_switch}
            arguments = join_repeated(arguments, is_list)
        self.argv = [self.argv[0], *arguments]

    def parse_collection(self) -> None:
        """Keeps the tasks that were named: Invoke's parser copies the flags of all that there are, several times."""
        super().parse_collection()
        named = [name for name in dict.fromkeys(self.argv[1:]) if name in self.namespace.tasks]
        self.collection = Collection(*(self.namespace[name] for name in named))

    def parse_tasks(self) -> None:
        """Parses a task's words and flags; says what is wrong with them in this program's words."""
        try:
            super().parse_tasks()
        except ParseError as error:
            name = self.argv[1]
            raise ParseError(f"lab: {self._explain(str(error), name)} See: ./lab {name} --help") from error

    def _explain(self, text: str, name: str) -> str:
        task = self.namespace[name]
        if unknown := re.fullmatch(r"No idea what '(.*)' is!", text):
            foreign = unknown[1].partition("=")[0].lstrip("-").replace("-", "_")
            if foreign in FOREIGN_FLAGS:
                return f"{name} has no flag '{unknown[1]}': {FOREIGN_FLAGS[foreign]}."
            close = difflib.get_close_matches(unknown[1], [f"--{flag.name}" for flag in task.flags], 1)
            return f"{name} does not know '{unknown[1]}'" + (f"; did you mean '{close[0]}'?" if close else ".")
        if missing := re.search(r"did not receive required positional arguments: (.*)", text):
            words = [word.strip("' ") for word in missing[1].split(",")]
            return f"{name} needs " + "; ".join(f"{word.upper()} ({task.flag(word).help})" for word in words) + "."
        if lacking := re.match(r"Flag <Argument: ([\w-]+)", text):
            flag = task.flag(lacking[1])
            return f"--{flag.name} needs a value: {flag.explained}."
        return text

    def execute(self) -> None:
        """Runs the task. After Ctrl-C Invoke would be silent and exit with 1, as if something were wrong."""
        try:
            super().execute()
        except KeyboardInterrupt as interrupt:
            end = endings.ending(interrupt)
            assert end is not None
            raise Exit(f"lab: {end.text}", end.code) from None

    def list_tasks(self) -> None:
        """Prints every task, in groups."""
        print(helping.task_list(self.groups))

    def print_help(self) -> None:
        """Prints the list of tasks; Invoke's own options are no part of the lab's help."""
        self.list_tasks()

    def print_task_help(self, name: str) -> None:
        """Prints a task's help."""
        print(helping.task_help(self.namespace[name]))


def candidates(words: Sequence[str], tasks: Mapping[str, LabTask]) -> list[str]:
    """Return what the last of these words may be: a task, a flag of the task, or a value of the flag before it.

    words: a command line without the program; the last one is incomplete, or empty.
    """

    def known(values: Values) -> list[str]:
        return list(getattr(values.of if isinstance(values, Several) else values, "known", ()))

    if len(words) < 2:
        return sorted(tasks)
    task, last, before = tasks.get(words[0]), words[-1], words[-2]
    if task is None:
        return []
    for flag in task.flags:
        if before == f"--{flag.name}" and not flag.is_switch and not (flag.optional_value and last.startswith("-")):
            return known(flag.values)
    if last.startswith("-"):
        return [flag.shown.split()[0] for flag in task.flags if not flag.is_word]
    return [value for flag in task.flags if flag.is_word for value in known(flag.values)]


def main() -> None:
    """Runs the command line and exits with its code."""
    endings.run(_run, known=(), prefix="lab: ")


def _run() -> None:
    try:
        environment_file.take_in()
        tasks = load_tasks()
    except LabError as error:
        sys.exit(error.message)
    if sys.argv[1:2] == ["--print-completion-script"]:
        print(COMPLETION_SCRIPT)
    elif sys.argv[1:2] == ["--complete"]:
        print("\n".join(candidates(sys.argv[3:], tasks.namespace.tasks)))
    else:
        Lab(tasks).run(["lab", *sys.argv[1:]])
