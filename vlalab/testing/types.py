"""Check types: mypy's strict errors per directory must be the stored counts; a directory without one has none.

`python -m vlalab.testing.types --write` stores the counts of the tree as it is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

from vlalab.host import paths

STORED = paths.ROOT / "types.json"


def check() -> list[str]:
    """Return mypy's errors, `path:line: error: message  [code]`. Raises RuntimeError where it cannot check."""
    variables = {**os.environ, "MYPYPATH": paths.python_path()}
    command = [sys.executable, "-m", "mypy", "--hide-error-context", "--no-pretty", "--no-color-output"]
    done = subprocess.run(command, cwd=paths.ROOT, env=variables, capture_output=True, text=True)
    if done.returncode > 1 or done.stderr:
        raise RuntimeError(f"mypy ended with {done.returncode}: {done.stderr or done.stdout}")
    return [line for line in done.stdout.splitlines() if ": error: " in line]


def differences(errors: list[str], stored: dict[str, int]) -> list[str]:
    """Return the errors of directories that have more than stored, and a sentence for each directory that differs."""
    counts = count(errors)
    more = {name for name in counts if counts[name] > stored.get(name, 0)}
    lines = [line for line in errors if {*count([line])} <= more]
    lines += [f"{name}: {counts[name]} type errors; expected at most {stored.get(name, 0)}" for name in sorted(more)]
    fewer = sorted(name for name, limit in stored.items() if counts[name] < limit)
    return lines + [f"{name}: {counts[name]} type errors, fewer than the stored {stored[name]}" for name in fewer]


def count(errors: list[str]) -> Counter[str]:
    """Return the number of errors by directory, relative to the repository's root."""
    return Counter(os.path.dirname(error.split(":", 1)[0]) or "." for error in errors)


def main() -> int:
    """Compare the counts with the stored ones, or store them. Return the exit code."""
    errors = check()
    if "--write" in sys.argv[1:]:
        STORED.write_text(json.dumps(count(errors), indent=1, sort_keys=True) + "\n")
        return 0
    lines = differences(errors, json.loads(STORED.read_text()))
    if lines:
        print(*lines, f"To store the counts: .venv/bin/python -m {__spec__.name} --write", sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
