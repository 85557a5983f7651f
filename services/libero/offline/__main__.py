"""`python -m services.libero.offline --dataset D --policy-url URL`: scores a policy on a data set, without a simulator.

With `--index N` it asks for one step, and shows frames, instruction, the chunk and what was recorded.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tyro
from rich.table import Table

from services.libero.offline import page, pictures, scores, scoring
from services.libero.offline.asking import answers, session
from services.libero.offline.options import OfflineOptions
from services.libero.offline.scores import Ruler, dimensions, errors, means
from services.libero.offline.views import View, view
from vla_common import endings
from vla_common.volume import Volume, shown
from vla_contract import PolicyClient
from vla_datasets.opening import find, open_dataset
from vla_evaluation.config import EvalConfig, parse_ranges, token_of
from vla_evaluation.evaluate import reach_policy
from vla_evaluation.terminal import one_line, say

FIRST = 10  # episodes, where none are named
WIDE = 4  # dimensions beside each other in a terminal's table


def main(arguments: Sequence[str]) -> int:
    """Scores, or asks once; returns the exit code."""
    asked = tyro.cli(OfflineOptions, prog="python -m services.libero.offline", args=list(arguments))
    dataset = open_dataset(find(asked.dataset))
    config = EvalConfig("", policy_url=asked.policy_url)
    info = reach_policy(config)
    shown_as = view(dataset, info, _pairs(asked.cameras), asked.unnorm_key)
    with PolicyClient(asked.policy_url, token_of(config)) as client:
        return show_one(client, shown_as, asked) if asked.index is not None else score_all(client, shown_as, asked)


def score_all(client: PolicyClient, view: View, asked: OfflineOptions) -> int:
    """Scores the chosen episodes and writes summary.json, report.html and, where asked for, a PNG for each."""
    info, dataset = view.info, view.dataset
    every = min(asked.execute or info.horizon, info.horizon)
    chosen = _chosen(view, asked.episodes)
    told = [text for one in dataset.episodes for text in one.tasks]
    ruler, folder, done, plots = Ruler(*view.ranges()), _folder(view, asked), [], []
    for one in chosen:
        swapped = scoring.swapped(dataset.episodes, told, one, asked.swap)
        done.append(scoring.score_episode(client, view, one, swapped, asked.seed, every, asked.steps))
        figures = means(errors(done[-1].own, done[-1].true, ruler))
        say(f"episode {one.index}: {len(done[-1].true)} steps, MSE {figures['mse']:.4g}, "
            f"normalised {figures['mse_normalised']:.4g} · {one_line(done[-1].instruction)}")  # fmt: skip
        if asked.plot:
            plots.append(_plot(folder / f"episode_{one.index:06d}.png", view, done[-1], every))
    figures = scoring.summary(done, view, ruler)
    verdict = scoring.listens(figures)
    how = {"episodes": ", ".join(str(one.index) for one in chosen), "asked every": f"{every} steps", "seed": asked.seed}
    facts = page.facts(info, view.notes, how)
    html = page.render(info.name, dataset.name, f"{len(done)} episodes, {figures['steps']} steps, no simulator", facts,
                       figures=figures, verdict=verdict, plots=plots)  # fmt: skip
    _write(folder, html, {**figures, "verdict": verdict, "facts": facts})
    _tell(figures, verdict)
    say(f"report: {shown(folder / 'report.html')}")
    return 0


def show_one(client: PolicyClient, view: View, asked: OfflineOptions) -> int:
    """Asks for one row of the data set; prints the chunk beside what was recorded, and writes the page."""
    episode, step = _place(view, asked.index)
    instruction = asked.swap or (episode.tasks[0] if episode.tasks else "")
    (frames,) = view.pictures(episode.index, [step])
    state = view.states(episode.index)
    seen = view.observation(frames, state[step], step, instruction, session(asked.seed, episode.index))
    (chunk,) = answers(client, iter([seen]), 1)
    true = view.true_actions(episode.index)[step : step + len(chunk)]
    predicted = chunk[: len(true)].astype(float)
    folder, info = _folder(view, asked), view.info
    where = f"row {asked.index}: episode {episode.index}, step {step} of {episode.length}"
    say(f"{info.name} on {view.dataset.name}, {where}\ninstruction: {one_line(instruction)}")
    for note in view.notes:
        say(f"  {note}")
    names = [name for name, _ in dimensions(info.action)]
    _print_chunk(names, predicted, true)
    if len(true) < len(chunk):
        say(f"the episode ends after {len(true)} of the chunk's {len(chunk)} actions; the others are not shown")
    ruler = Ruler(*view.ranges())
    apart = errors(predicted, true, ruler)
    figures = {"steps": len(true), "overall": means(apart), "keys": scores.by_key(apart, info.action),
               "dimensions": scores.by_dimension(apart, info.action), "episodes": [], "swapped": None}  # fmt: skip
    plot = pictures.curves(folder / "chunk.png", where, names, true, predicted, len(true))
    facts = page.facts(info, view.notes, {"row": asked.index, "seed": asked.seed})
    html = page.render(info.name, view.dataset.name, where, facts, figures=figures, instruction=instruction,
                       frames=[(name, page.png(one)) for name, one in frames.items()],
                       plots=[("The chunk", page.embedded(plot))])  # fmt: skip
    answer = {"predicted": predicted.tolist(), "recorded": true.tolist(), "names": names, "instruction": instruction}
    _write(folder, html, {**figures, **answer, "facts": facts})
    say(f"MSE {means(apart)['mse']:.4g}, normalised {means(apart)['mse_normalised']:.4g}")
    say(f"page: {shown(folder / 'report.html')}")
    return 0


def _chosen(view: View, wanted: str) -> list:
    known = {one.index: one for one in view.dataset.episodes if one.length}
    if empty := [str(one.index) for one in view.dataset.episodes if not one.length]:
        say(f"episodes without rows are left out: {', '.join(empty)}")
    numbers = parse_ranges(wanted) if wanted else list(known)[:FIRST]
    if beyond := [number for number in numbers if number not in known]:
        raise ValueError(f"{view.dataset.name} has no episode {beyond[0]}; it has {len(known)}, from 0 on")
    if not wanted and len(known) > FIRST:
        say(f"the first {FIRST} of {len(known)} episodes (--episodes chooses)")
    return [known[number] for number in numbers]


def _place(view: View, index: int) -> tuple:
    left = index
    for one in view.dataset.episodes:
        if 0 <= left < one.length:
            return one, left
        left -= one.length
    raise ValueError(f"--index {index} is no row of {view.dataset.name}; it has {len(view.dataset)}, from 0 on")


def _folder(view: View, asked: OfflineOptions) -> Path:
    """Returns where the results go; those of an earlier time under the same name are replaced."""
    of = f"-row{asked.index}" if asked.index is not None else ""
    folder = Volume().logs / "offline" / (asked.name or f"{view.dataset.name}-{view.info.name}{of}")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    return folder


def _plot(path: Path, view: View, one: scoring.Scored, every: int) -> tuple[str, str]:
    names = [name for name, _ in dimensions(view.info.action)]
    title = f"episode {one.episode}: {one.instruction}"
    state = view.states(one.episode)[: len(one.true)]
    return title, page.embedded(pictures.curves(path, title, names, one.true, one.own, every, state))


def _write(folder: Path, html: str, figures: dict) -> None:
    (folder / "report.html").write_text(html, encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _tell(figures: dict, verdict: str) -> None:
    table = Table(
        "key", *(kind.replace("_", ", ").upper().replace("NORMALISED", "normalised") for kind in scores.KINDS)
    )
    for one in (*figures["keys"], {"key": "all", **figures["overall"]}):
        table.add_row(one["key"], *(f"{one[kind]:.4g}" for kind in scores.KINDS))
    endings.console().print(table)
    say(verdict)


def _print_chunk(names: Sequence[str], predicted: np.ndarray, true: np.ndarray) -> None:
    """Prints the chunk beside what was recorded, a few dimensions at a time so that a terminal holds them."""
    say("the policy's action / what was recorded")
    for begin in range(0, len(names), WIDE):
        few = slice(begin, begin + WIDE)
        table = Table("step", *names[few])
        for step, pair in enumerate(zip(predicted[:, few], true[:, few], strict=True)):
            table.add_row(str(step), *(f"{ours:.3f} / {theirs:.3f}" for ours, theirs in zip(*pair, strict=True)))
        endings.console().print(table)


def _pairs(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part]
    if bad := [name for name, equals, film in pairs if not (name and equals and film)]:
        raise ValueError(f"--cameras {bad[0]!r} names no film; expected CAMERA=FILM,…")
    return {name: film for name, _, film in pairs}


if __name__ == "__main__":
    endings.run(main, sys.argv[1:])
