"""The course: training time of the plain Transformer, response time of the grader, and two training recipes.

lesson   lessons/transformer.py: it learns to reverse sentences of letters and is tested on new ones
check    `./lab check` of a correct file, a wrong one and one that never ends, each in its own process
recipes  the same small Transformer trained for the same time on the default corpus: as size tiny is (batches of similar
         length, warm-up, clipping), and as the course does (8 sentences padded to 350, constant rate, no clipping)

    ./lab bench course [--quick]
    ./lab bench course --options "--part lesson"
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from pathlib import Path

os.environ.setdefault(
    "OMP_WAIT_POLICY", "passive"
)  # read when torch is imported; active waiting is slow on a busy machine

import torch

from bench.common import figure, flags, median_ms
from lessons import transformer as lesson
from lessons.exercises.runner import LIMIT_S, check
from lessons.exercises.source import BLANK, blank, definition, exercise, file_for
from services.ws_mdl.transformer.config import get_config
from services.ws_mdl.transformer.train import Trainer, get_ds, run_validation
from vla_common.volume import Volume
from vla_modelkit.training.machine import choose_machine

ENVIRONMENT = "ws_mdl"
STEPS, BATCH, SENTENCES = 2000, 64, 200
RECIPE_S = 180.0
SMALL = {"d_model": 128, "N": 2, "h": 4, "d_ff": 512}
ATTENTION = exercise("transformer.attention")


def main() -> int:
    """Print the figures; return 1 if one misses its target."""
    parser = flags(__doc__, "a few steps and answers, to check that it runs")
    parser.add_argument("--part", choices=("lesson", "check", "recipes"), help="only this part")
    options = parser.parse_args()
    quick = options.quick
    parts = {
        "lesson": lambda: learning(20 if quick else STEPS),
        "check": lambda: answers(1 if quick else 5),
        "recipes": lambda: recipes(3 if quick else RECIPE_S),
    }
    met = [is_met for name, run in parts.items() if options.part in (None, name) for is_met in run()]
    return 0 if quick or all(met) else 1


def learning(steps: int) -> list[bool]:
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
    return [
        figure("course.lesson_exact", 100 * right / SENTENCES, "%", ">=95"),
        figure("course.lesson_minutes", minutes, "min", "<=5"),
    ]


def answers(rounds: int) -> list[bool]:
    """Measure the grader's response time."""
    text = file_for(ATTENTION)
    files = {
        "right": (text.replace(blank(definition(ATTENTION)), definition(ATTENTION)), "<=5"),
        "wrong": (text.replace(BLANK, "return query"), "<=5"),
        "endless": (text.replace(f"    {BLANK}", "    while True: pass"), f"<={LIMIT_S + 5:g}"),
    }
    met = []
    with tempfile.TemporaryDirectory() as directory:
        for name, (code, target) in files.items():
            path = Path(directory) / f"{name}.py"
            path.write_text(code, encoding="utf-8")
            seconds = []
            for _ in range(1 if name == "endless" else rounds):
                start = time.perf_counter()
                check(ATTENTION.name, path)
                seconds.append(time.perf_counter() - start)
            met.append(figure(f"course.check_{name}_s", median_ms(seconds) / 1e3, "s", target, quick=True))
    return met


def recipes(seconds: float) -> list[bool]:
    """Train the same model by both recipes for `seconds` each; validation loss in nats per word, without smoothing."""
    machine, met, losses, speeds = choose_machine("cpu", "fp32"), [], {}, {}
    for size in ("tiny", "course"):
        config = get_config(size, name=size, device="cpu", precision="fp32", val_sentences=0, **SMALL)
        with tempfile.TemporaryDirectory() as directory:
            trainer = Trainer(config, machine, get_ds(config, Path(directory), machine, Volume()), Path(directory))
            speeds[size] = train_for(trainer, seconds)
            data = trainer.data
            validation = run_validation(trainer.loss_fn, data.val_dataloader, *data[2:], machine, config.seq, 0)
            losses[size] = validation.metrics()["loss"]
        figure(f"course.recipe_{size}_loss", losses[size], "nats/word", "<=10")
        figure(f"course.recipe_{size}_words", speeds[size], "words/s", ">=0")
    met.append(figure("course.recipes_speed", speeds["tiny"] / speeds["course"], "×", ">=3"))
    met.append(figure("course.recipes_loss_gained", losses["course"] - losses["tiny"], "nats/word", ">=0"))
    return met


def train_for(trainer: Trainer, seconds: float) -> float:
    """Train for `seconds`; return target words per second, without padding."""
    start, tokens = time.perf_counter(), 0
    while True:
        loader = trainer.data.train_dataloader
        loader.batch_sampler.set_position(trainer.epoch + 1)
        for batch in loader:
            trainer.step([batch])
            tokens += batch.real.numel()
            if (spent := time.perf_counter() - start) >= seconds:
                return tokens / spent
        trainer.finish_epoch(None)


if __name__ == "__main__":
    raise SystemExit(main())
