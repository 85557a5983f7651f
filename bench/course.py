"""The course: training time of the plain Transformer, and response time of the grader.

lesson   lessons/transformer.py: it learns to reverse sentences of letters and is tested on new ones
check    `./lab check` of a correct file, a wrong one and one that never ends, each in its own process

    ./lab bench course [--quick]
    ./lab bench course --options "--part lesson"
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported; active waiting is slow when busy

import torch

from bench.common import figure, flags, missed
from lessons import transformer as lesson
from lessons.exercises.runner import LIMIT_S, check
from lessons.exercises.source import BLANK, blank, definition, exercise, file_for

ENVIRONMENT = "ws_mdl"
STEPS, BATCH, SENTENCES = 2000, 64, 200
RECIPE_S = 180.0
SMALL = {"d_model": 128, "N": 2, "h": 4, "d_ff": 512}
ATTENTION = exercise("transformer.attention")


def main() -> int:
    """Print the figures; return 1 if one misses its target."""
    parser = flags(__doc__, "a few steps and answers, to check that it runs")
    parser.add_argument("--part", choices=("lesson", "check"), help="only this part")
    options = parser.parse_args()
    quick = options.quick
    if options.part in (None, "lesson"):
        learning(20 if quick else STEPS)
    if options.part in (None, "check"):
        answers(1 if quick else 5)
    return int(bool(missed) and not quick)


def learning(steps: int) -> None:
    """Train the lesson's model as the lesson does."""
    torch.manual_seed(0)
    draw = random.Random(0)
    model = lesson.Transformer(src_vocab=29, tgt_vocab=29, seq=14)
    start = time.perf_counter()
    lesson.train_model(model, (lesson.reversed_letters(draw, BATCH) for _ in range(steps)), d_model=128)
    minutes = (time.perf_counter() - start) / 60
    model.eval()
    pairs = zip(*lesson.reversed_letters(draw, SENTENCES), strict=True)
    right = sum(lesson.greedy_decode(model, source, 14) == target for source, target in pairs)
    figure("course.lesson_exact", 100 * right / SENTENCES, "%", ">=95")
    figure("course.lesson_minutes", minutes, "min", "<=5")


def answers(rounds: int) -> None:
    """Measure the grader's response time."""
    text = file_for(ATTENTION)
    files = {
        "right": (text.replace(blank(definition(ATTENTION)), definition(ATTENTION)), "<=5"),
        "wrong": (text.replace(BLANK, "return query"), "<=5"),
        "endless": (text.replace(f"    {BLANK}", "    while True: pass"), f"<={LIMIT_S + 5:g}"),
    }
    with tempfile.TemporaryDirectory() as directory:
        for name, (code, target) in files.items():
            path = Path(directory) / f"{name}.py"
            path.write_text(code, encoding="utf-8")
            seconds = []
            for _ in range(1 if name == "endless" else rounds):
                start = time.perf_counter()
                check(ATTENTION.name, path)
                seconds.append(time.perf_counter() - start)
            figure(f"course.check_{name}_s", statistics.median(seconds), "s", target, quick=True)


if __name__ == "__main__":
    raise SystemExit(main())
