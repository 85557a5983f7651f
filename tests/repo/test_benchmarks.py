"""Benchmarks: the sides of each are shown to differ, none depends on a private name, a quick run has no false target.

What differs between the sides of a benchmark NAME is tested in its environment: a test whose name begins with
`test_NAME_` in a file tests/*/test_benchmarks.py.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from bench import common
from vlalab.commands import programs
from vlalab.host import paths

SOURCES = [path for path in sorted((paths.ROOT / "bench").rglob("*.py")) if path != Path(common.__file__)]
TESTS = [path for path in sorted((paths.ROOT / "tests").glob("*/test_benchmarks.py")) if path != Path(__file__)]
# What measures one program against a fixed target, with the reason that there is no other side.
ONE_SIDE = {
    "audit": "named faults, counted",
    "audit_data": "planted faults and healthy sets, one detector",
    "class": "students of one hub",
    "simulator": "one page in a browser",
    "ui": "pages of one service",
}


@pytest.mark.parametrize("name", programs.benchmarks())
def test_every_benchmark_that_compares_has_a_test_that_its_sides_differ(name):
    tests = [path for path in TESTS if re.search(rf"(?m)^def test_{name}_", path.read_text())]
    assert bool(tests) != (name in ONE_SIDE), (
        f"bench/{name}.py: write test_{name}_… in tests/<environment>/test_benchmarks.py, which shows that its sides "
        "run different code, or name it in ONE_SIDE with the reason that it compares nothing"
    )


def test_benchmarks_with_one_side_exist():
    assert set(ONE_SIDE) < set(programs.benchmarks())


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_no_benchmark_replaces_a_private_name(source):
    """Such a name can be renamed; then both sides run the same code without a word. Settings are public."""
    replaced = []
    for node in ast.walk(ast.parse(source.read_text())):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Attribute) and target.attr.startswith("_") and not target.attr.startswith("__"):
                replaced += [] if ast.unparse(target.value) == "self" else [f"{source.name}:{node.lineno}"]
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "mock.patch", "patch.object"):
            replaced.append(f"{source.name}:{node.lineno}")
    assert not replaced


def test_an_attribute_that_is_gone_is_not_replaced():
    class Queue:
        waits = True

    common.replace_attributes(queue := Queue(), waits=False)
    assert queue.waits is False
    with pytest.raises(AttributeError, match="holds_back"):
        common.replace_attributes(queue, holds_back=False)
    assert not hasattr(queue, "holds_back")


@pytest.mark.parametrize(
    ("words", "quick", "printed", "met"),
    [
        ([], False, ">=2", False),
        ([], True, ">=2", False),
        (["--quick"], False, "none", True),
        (["--quick"], True, ">=2", False),
    ],
)
def test_a_figure_has_a_target_in_a_quick_run_only_where_that_can_reach_it(
    words, quick, printed, met, monkeypatch, capsys
):
    monkeypatch.setattr("sys.argv", ["bench", *words])
    assert common.figure("speed", 1.5, "ratio", ">=2", quick=quick) is met
    assert capsys.readouterr().out == f"FIGURE name=speed value=1.5 unit=ratio target={printed}\n"
