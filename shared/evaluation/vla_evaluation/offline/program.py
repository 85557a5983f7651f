"""Score a policy on a data set without a simulator, or query it for one row.

A benchmark's module calls `main` with its profiles and the names of its data sets' cameras.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tyro
from rich.table import Table

from vla_common import entrypoint
from vla_common.volume import Volume, display_path
from vla_contract import PolicyClient
from vla_datasets.loader import find, open_dataset
from vla_datasets.metadata import Episode
from vla_evaluation.benchmark import Benchmark
from vla_evaluation.config import EvalConfig, parse_ranges, token_of
from vla_evaluation.dataset_options import OfflineOptions
from vla_evaluation.evaluate import reach_policy
from vla_evaluation.offline import report, scores
from vla_evaluation.offline.policy_view import PolicyView, view_as
from vla_evaluation.terminal import say, single_line

DEFAULT_EPISODES = 10
TABLE_COLUMNS = 4  # dimensions in one table of a terminal


def main(benchmark: Benchmark, cameras: Mapping[str, str], arguments: Sequence[str], prog: str) -> int:
    """Score episodes, or query one row; return the exit code. cameras: `usual_cameras` of `view_as`."""
    options = tyro.cli(OfflineOptions, prog=prog, args=list(arguments))
    dataset = open_dataset(find(options.dataset))
    config = EvalConfig("", policy_url=options.policy_url)
    info = reach_policy(config)
    view = view_as(dataset, info, benchmark.profiles, cameras, _parse_cameras(options.cameras), options.unnorm_key)
    with PolicyClient(options.policy_url, token_of(config)) as client:
        if options.index is None:
            score_episodes(client, view, options)
        else:
            show_row(client, view, options, options.index)
    return 0


def score_episodes(client: PolicyClient, view: PolicyView, options: OfflineOptions) -> None:
    """Score the selected episodes and write summary.json, report.html and, with --plot, a PNG for each."""
    info, dataset = view.info, view.dataset
    every = min(options.execute or info.horizon, info.horizon)
    episodes = _choose_episodes(view, options.episodes)
    low, high = view.ranges()
    names, directory = scores.dimension_names(info.action), _make_directory(view, options)
    scored, plots = [], []
    for episode in episodes:
        swapped = options.swap or scores.swap_instruction(dataset.episodes, episode)
        result = scores.score_episode(client, view, episode, swapped, options.seed, every, options.steps)
        scored.append(result)
        mean = scores.average(scores.errors(result.predicted, result.recorded, high - low))
        say(f"episode {result.index}: {len(result.recorded)} steps, MSE {mean['mse']:.4g}, "
            f"normalised {mean['mse_normalised']:.4g} · {single_line(result.instruction)}")  # fmt: skip
        if options.plot:
            path, title = directory / f"episode_{result.index:06d}.png", f"episode {result.index}: {result.instruction}"
            state = view.recorded_states(result.index)[: len(result.recorded)]
            plots.append(report.plot_curves(path, title, names, result.recorded, result.predicted, every, state))
    figures = scores.summarize(scored, info.action, high - low)
    verdict = scores.describe_listening(figures)
    numbers = ", ".join(str(episode.index) for episode in episodes)
    settings = {"episodes": numbers, "queried every": f"{every} steps", "seed": options.seed}
    provenance = report.list_provenance(info, view.notes, settings)
    subtitle = f"{len(scored)} episodes, {figures['steps']} steps, no simulator"
    html = report.render(info.name, dataset.name, subtitle, provenance, figures=figures, verdict=verdict, plots=plots)
    _write(directory, html, {**figures, "verdict": verdict, "facts": provenance})
    titles = (metric.replace("_", ", ").upper().replace("NORMALISED", "normalised") for metric in scores.METRICS)
    table = Table("key", *titles)
    for row in (*figures["keys"], {"key": "all", **figures["overall"]}):
        table.add_row(row["key"], *(f"{row[metric]:.4g}" for metric in scores.METRICS))
    entrypoint.console().print(table)
    say(verdict)
    say(f"report: {display_path(directory / 'report.html')}")


def show_row(client: PolicyClient, view: PolicyView, options: OfflineOptions, index: int) -> None:
    """Query one row of the data set; print the chunk next to the recorded actions, and write the page."""
    info, dataset = view.info, view.dataset
    episode, step = _find_row(view, index)
    instruction = options.swap or (episode.tasks[0] if episode.tasks else "")
    session = scores.session_name(options.seed, episode.index)
    (observation,) = view.observations(episode.index, [step], instruction, session)
    chunk = client.act(observation).actions
    recorded = view.recorded_actions(episode.index)[step : step + len(chunk)]
    predicted = chunk[: len(recorded)].astype(float)
    names = scores.dimension_names(info.action)
    row_title = f"row {index}: episode {episode.index}, step {step} of {episode.length}"
    say(f"{info.name} on {dataset.name}, {row_title}\ninstruction: {single_line(instruction)}")
    for note in view.notes:
        say(f"  {note}")
    say("the policy's action / what was recorded")
    for start in range(0, len(names), TABLE_COLUMNS):
        columns = slice(start, start + TABLE_COLUMNS)
        table = Table("step", *names[columns])
        for number, (predicted_row, recorded_row) in enumerate(
            zip(predicted[:, columns], recorded[:, columns], strict=True)
        ):
            table.add_row(
                str(number), *(f"{a:.3f} / {b:.3f}" for a, b in zip(predicted_row, recorded_row, strict=True))
            )
        entrypoint.console().print(table)
    if len(recorded) < len(chunk):
        say(f"the episode ends after {len(recorded)} of the chunk's {len(chunk)} actions; the rest is not displayed")
    low, high = view.ranges()
    figures = scores.tables(scores.errors(predicted, recorded, high - low), info.action)
    figures |= {"steps": len(recorded), "episodes": [], "swapped": None}
    directory = _make_directory(view, options)
    _, plot = report.plot_curves(directory / "chunk.png", row_title, names, recorded, predicted, len(recorded))
    provenance = report.list_provenance(info, view.notes, {"row": index, "seed": options.seed})
    frames = [(name, report.frame_uri(frame)) for name, frame in observation.images.items()]
    html = report.render(info.name, dataset.name, row_title, provenance, figures=figures, instruction=instruction,
                         frames=frames, plots=[("The chunk", plot)])  # fmt: skip
    answer = {"predicted": predicted.tolist(), "recorded": recorded.tolist(), "names": names}
    _write(directory, html, {**figures, **answer, "instruction": instruction, "facts": provenance})
    say(f"MSE {figures['overall']['mse']:.4g}, normalised {figures['overall']['mse_normalised']:.4g}")
    say(f"page: {display_path(directory / 'report.html')}")


def _choose_episodes(view: PolicyView, ranges: str) -> list[Episode]:
    episodes = {episode.index: episode for episode in view.dataset.episodes if episode.length}
    if empty := [str(episode.index) for episode in view.dataset.episodes if not episode.length]:
        say(f"skipped episodes without rows: {', '.join(empty)}")
    numbers = parse_ranges(ranges) if ranges else list(episodes)[:DEFAULT_EPISODES]
    if unknown := [number for number in numbers if number not in episodes]:
        raise ValueError(
            f"{view.dataset.name} has no episode {unknown[0]}; choose from {len(episodes)} episodes, numbered from 0"
        )
    if len(numbers) < len(episodes) and not ranges:
        say(f"the first {len(numbers)} of {len(episodes)} episodes (--episodes selects others)")
    return [episodes[number] for number in numbers]


def _find_row(view: PolicyView, index: int) -> tuple[Episode, int]:
    step = index
    for episode in view.dataset.episodes:
        if 0 <= step < episode.length:
            return episode, step
        step -= episode.length
    raise ValueError(f"--index {index} is not a row of {view.dataset.name}; expected 0 to {len(view.dataset) - 1}")


def _make_directory(view: PolicyView, options: OfflineOptions) -> Path:
    """Return the directory of the results; results of an earlier call under the same name are replaced."""
    row = f"-row{options.index}" if options.index is not None else ""
    directory = Volume().logs / "offline" / (options.name or f"{view.dataset.name}-{view.info.name}{row}")
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("*.png"):
        old.unlink()
    return directory


def _write(directory: Path, html: str, figures: dict[str, Any]) -> None:
    (directory / "report.html").write_text(html, encoding="utf-8")
    (directory / "summary.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _parse_cameras(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part]
    for camera, equals, video in pairs:
        if not (camera and equals and video):
            raise ValueError(f"invalid --cameras {camera!r}; expected CAMERA=VIDEO,…")
    return {camera: video for camera, _, video in pairs}
