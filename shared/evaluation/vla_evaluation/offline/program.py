"""Score a policy on a data set without a simulator, or query it for one row; results as a self-contained page.

A benchmark's module calls `main` with its profiles and the names of its data sets' cameras.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from matplotlib.figure import Figure
from PIL import Image
from rich.table import Table

from vla_common import entrypoint
from vla_common.volume import Volume, display_path
from vla_contract import PolicyClient
from vla_datasets.loader import find, open_dataset
from vla_datasets.metadata import Episode
from vla_evaluation.benchmark import Benchmark
from vla_evaluation.config import EvalConfig, parse_ranges, token_of
from vla_evaluation.dataset_options import OfflineOptions, parse_cameras
from vla_evaluation.evaluate import reach_policy
from vla_evaluation.offline import scores
from vla_evaluation.offline.policy_view import PolicyView, view_as
from vla_evaluation.report.page import DIRECTORY, templates
from vla_evaluation.terminal import say, single_line

DEFAULT_EPISODES = 10
TABLE_COLUMNS = 4  # dimensions in one table of a terminal
DETAILS = ("embodiment", "embodiment_from", "assumed", "prompt", "denoising_steps", "engine")
PLOT_COLUMNS = 4
COLOURS = {"recorded": "#3b7ddd", "policy": "#c9701a", "state": "#9aa3ad"}


def main(benchmark: Benchmark, cameras: Mapping[str, str], arguments: Sequence[str], prog: str) -> int:
    """Score episodes, or query one row; return the exit code. cameras: `usual_cameras` of `view_as`."""
    options = tyro.cli(OfflineOptions, prog=prog, args=list(arguments))
    dataset = open_dataset(find(options.dataset))
    config = EvalConfig("", policy_url=options.policy_url)
    info = reach_policy(config)
    view = view_as(dataset, info, benchmark.profiles, cameras, parse_cameras(options.cameras), options.unnorm_key)
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
            plots.append((title, plot_curves(path, title, names, result.recorded, result.predicted, every, state)))
    figures = scores.summarize(scored, info.action, high - low)
    verdict = scores.describe_listening(figures)
    numbers = ", ".join(str(episode.index) for episode in episodes)
    settings = {"episodes": numbers, "queried every": f"{every} steps", "seed": options.seed}
    subtitle = f"{len(scored)} episodes, {figures['steps']} steps, no simulator"
    _write(directory, view, subtitle, settings, figures, {"verdict": verdict}, verdict=verdict, plots=plots)
    titles = (metric.replace("_", ", ").upper().replace("NORMALISED", "normalised") for metric in scores.METRICS)
    table = Table("key", *titles)
    for row in (*figures["keys"], {"key": "all", **figures["overall"]}):
        table.add_row(row["key"], *(f"{row[metric]:.4g}" for metric in scores.METRICS))
    entrypoint.console().print(table)
    say(verdict)
    say(f"report: {display_path(directory / 'report.html')}")


def show_row(client: PolicyClient, view: PolicyView, options: OfflineOptions, index: int) -> None:
    """Query one row of the data set; print the chunk next to the recorded actions, and write the page."""
    info, dataset, step = view.info, view.dataset, index
    for episode in dataset.episodes:
        if 0 <= step < episode.length:
            break
        step -= episode.length
    else:
        raise ValueError(f"--index {index} is not a row of {dataset.name}; expected 0 to {len(dataset) - 1}")
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
        for number, rows in enumerate(zip(predicted[:, columns], recorded[:, columns], strict=True)):
            table.add_row(str(number), *(f"{ours:.3f} / {theirs:.3f}" for ours, theirs in zip(*rows, strict=True)))
        entrypoint.console().print(table)
    if len(recorded) < len(chunk):
        say(f"the episode ends after {len(recorded)} of the chunk's {len(chunk)} actions; the rest is not displayed")
    low, high = view.ranges()
    figures = scores.tables(scores.errors(predicted, recorded, high - low), info.action)
    figures |= {"steps": len(recorded), "episodes": [], "swapped": None}
    directory = _make_directory(view, options)
    plot = plot_curves(directory / "chunk.png", row_title, names, recorded, predicted, len(recorded))
    frames = []
    for name, frame in observation.images.items():
        stream = io.BytesIO()
        Image.fromarray(frame).save(stream, "PNG")
        frames.append((name, data_uri(stream.getvalue())))
    answer = {"predicted": predicted.tolist(), "recorded": recorded.tolist(), "names": names}
    _write(
        directory, view, row_title, {"row": index, "seed": options.seed}, figures,
        {**answer, "instruction": instruction}, instruction=instruction, frames=frames, plots=[("The chunk", plot)],
    )  # fmt: skip
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


def _make_directory(view: PolicyView, options: OfflineOptions) -> Path:
    """Return the directory of the results; results of an earlier call under the same name are replaced."""
    row = f"-row{options.index}" if options.index is not None else ""
    directory = Volume().logs / "offline" / (options.name or f"{view.dataset.name}-{view.info.name}{row}")
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("*.png"):
        old.unlink()
    return directory


def _write(
    directory: Path, view: PolicyView, subtitle: str, settings: Mapping[str, object], figures: dict[str, Any],
    more: dict[str, Any], **parts: Any,
) -> None:  # fmt: skip
    """Write report.html and summary.json. parts: verdict, frames, instruction, plots, as the template names them."""
    info = view.info
    provenance = [("policy", info.name), ("device", info.device), ("numbers", info.quantization)]
    if info.checkpoint:
        provenance.append(("checkpoint", " ".join(str(var) for var in vars(info.checkpoint).values() if var)))
    provenance += [(name, str(value)) for name, value in settings.items()]
    provenance += [(name, info.details[name]) for name in DETAILS if name in info.details]
    provenance += [("note", note) for note in view.notes]
    environment = templates(Path(__file__).parent, DIRECTORY)
    environment.filters["number"] = lambda value: f"{value:.4g}"
    html = environment.get_template("report.html.j2").render(
        policy=info.name, dataset=view.dataset.name, subtitle=subtitle, provenance=provenance, kinds=scores.METRICS,
        figures=figures, **{"verdict": "", "frames": [], "instruction": "", "plots": [], **parts},
    )  # fmt: skip
    (directory / "report.html").write_text(html, encoding="utf-8")
    summary = {**figures, **more, "facts": provenance}
    (directory / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


def plot_curves(
    path: Path, title: str, names: Sequence[str], recorded: np.ndarray, predicted: np.ndarray, every: int,
    state: np.ndarray | None = None,
) -> str:  # fmt: skip
    """Write a PNG with a subplot per dimension; return its data URI.

    recorded, predicted: [T, n]; every: steps between two inferences, each a dot; state: [T, n] where it has that shape.
    """
    columns = min(PLOT_COLUMNS, len(names))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(3.2 * columns, 1.9 * rows + 0.8), dpi=100, layout="constrained")
    subplots = np.atleast_1d(figure.subplots(rows, columns, sharex=True)).ravel()
    for i, (axes, name) in enumerate(zip(subplots, names, strict=False)):
        if state is not None and state.shape == recorded.shape:
            axes.plot(state[:, i], color=COLOURS["state"], lw=0.8, label="state")
        axes.plot(recorded[:, i], color=COLOURS["recorded"], lw=1.2, label="recorded")
        axes.plot(predicted[:, i], color=COLOURS["policy"], lw=1.2, ls="--", label="policy")
        request_steps = np.arange(0, len(predicted), every)
        axes.plot(request_steps, predicted[request_steps, i], ".", color=COLOURS["policy"], ms=5, label="query")
        axes.set_title(name, fontsize=9)
        axes.tick_params(labelsize=8)
    for axes in subplots[len(names) :]:
        axes.set_visible(False)
    figure.suptitle(title, fontsize=10, wrap=True)
    figure.legend(*subplots[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path)
    return data_uri(path.read_bytes())


def data_uri(png: bytes) -> str:
    """Return a PNG as a page embeds it."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
