"""Completion in a shell, from the tasks' flags: `source <(./lab --print-completion-script)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vlalab.tasks.flags import LabTask
from vlalab.tasks.values import Several, Values

# zsh runs it too, by bashcompinit.
SCRIPT = """[ -z "$ZSH_VERSION" ] || { autoload -U +X bashcompinit && bashcompinit; }
_complete_lab() {
    local words="$("${COMP_WORDS[0]}" --complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)"
    COMPREPLY=( $(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}") )
}
complete -o default -F _complete_lab lab invoke inv"""


def candidates(words: Sequence[str], tasks: Mapping[str, LabTask]) -> list[str]:
    """Return what the last of these words may be: a task, a flag of the task, or a value of the flag before it.

    words: a command line without the program; the last one is incomplete, or empty.
    """
    if len(words) < 2:
        return sorted(tasks)
    task, last, before = tasks.get(words[0]), words[-1], words[-2]
    if task is None:
        return []
    for flag in task.flags:
        if before == f"--{flag.name}" and not flag.is_switch and not (flag.optional_value and last.startswith("-")):
            return _known(flag.values)
    if last.startswith("-"):
        return [flag.shown.split()[0] for flag in task.flags if not flag.is_word]
    return [value for flag in task.flags if flag.is_word for value in _known(flag.values)]


def _known(values: Values) -> list[str]:
    return list(getattr(values.of if isinstance(values, Several) else values, "known", ()))
