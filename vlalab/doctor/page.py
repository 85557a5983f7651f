"""The table of all checks in docs/doctor.md: `python -m vlalab.doctor.page` writes it there."""

from __future__ import annotations

from vlalab.doctor import registry
from vlalab.host import paths

PAGE = paths.ROOT / "docs" / "doctor.md"
BEGIN, END = "<!-- checks -->\n", "<!-- end of checks -->"


def table() -> str:
    """Returns the table as Markdown."""
    rows = ["| check | what it means when it is not in order | worst | in general | before |", "|---|---|---|---|---|"]
    for one in registry.checks():
        fix = f"`{one.fix}`" if one.fix else ""
        rows.append(f"| `{one.id}` | {one.meaning} | {one.severity} | {fix} | {', '.join(one.before)} |")
    return "\n".join(rows) + "\n"


def written(text: str) -> str:
    """Returns the page with the table in its place."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
