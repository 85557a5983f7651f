"""report.html: one self-contained file, which needs no network."""

from __future__ import annotations

import base64
import csv
import io
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from vla_common.durations import format_duration
from vla_contract.protocol.parts import Part
from vla_evaluation import inputs
from vla_evaluation.config import flatten
from vla_evaluation.report.data import Summary
from vla_evaluation.report.leaderboard import kinds, title
from vla_evaluation.report.stats import Rate
from vla_evaluation.store.records import Finished
from vla_evaluation.terminal import plain

DIRECTORY = Path(__file__).parent  # of the templates
EMBED_BYTES = 24_000_000  # further videos and stills are linked, so the page opens quickly
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of text that a spreadsheet evaluates
COLOURS = {  # of the stages; each has a contrast of 3 : 1 against a white and a dark card
    "reset": "#7c8aa5", "simulation": "#3b7ddd", "rendering": "#12908f", "preprocessing": "#8a63d2", "wire": "#c9701a",
    "server: decode": "#a3832b", "server: queue": "#8d7b6c", "server: inference": "#c2479b",
    "server: encode": "#7a8f2e", "other": "#808792",
}  # fmt: skip


def clips(directory: Path, summary: Summary, embed_bytes: int) -> list[dict[str, Any]]:
    """Return the episodes with a video, failures first: task, instruction, episode, and video and still as data URIs
    until `embed_bytes` are used, then as relative links; None if there is none.
    """
    left = embed_bytes

    def uri(name: str | None, mime: str) -> str | None:
        nonlocal left
        path = directory / name if name else None
        if path is None or not path.is_file():
            return None
        size = path.stat().st_size * 4 // 3
        if size > left:
            return name
        left -= size
        return f"data:{mime};base64,{base64.b64encode(path.read_bytes()).decode()}"

    with_video = [(task, e) for task in summary.tasks for e in task.episodes if "video" in e.result]
    gallery = []
    for task, episode in sorted(with_video, key=lambda pair: pair[1].success):
        still = uri(episode.result.get("still"), "image/jpeg")
        video = uri(episode.result.get("video"), "video/mp4")
        clip = {"task": task.index, "instruction": task.instruction, "episode": episode, "video": video, "still": still}
        gallery.append(clip)
    return gallery


def interval_bar(rate: Rate, finished: bool = True, height: int = 18, published: float | None = None) -> dict[str, Any]:
    """Return the positions, in percent of the width, of a bar with its Wilson interval, and its text."""
    low, high = (round(100 * end, 2) for end in rate.interval)
    label = f"{rate.percent}, 95 % interval {low:.1f} to {high:.1f} %" if rate.trials else "no episode done"
    return {
        "height": height, "finished": finished, "value": round(100 * rate.value, 2), "low": low, "high": high,
        "words": label, "known": rate.trials > 0, "published": published,
    }  # fmt: skip


def verdict(episode: Finished) -> str:
    return "success" if episode.success else "policy error" if "policy_error" in episode.result else "failure"


def timing_split(summary: Summary) -> list[dict[str, Any]]:
    """Return the stages of the stacked bar: name, ms per step, share and start in percent."""
    parts, begin = [], 0.0
    for name, explanation, ms, share in summary.stages():
        part = {"words": name, "what": explanation, "ms": ms, "colour": COLOURS[name]}
        parts.append(part | {"share": 100 * share, "begin": begin})
        begin += 100 * share
    return parts


@lru_cache
def templates(*directories: Path) -> jinja2.Environment:
    """Return the templates of those directories; every text is escaped and stripped of control characters."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(directories), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: plain(value) if type(value) is str else value,  # our own markup stays as it is
    )  # fmt: skip
    environment.filters |= {
        "percent": lambda value: f"{100 * value:.1f}".removesuffix(".0"),
        "duration": format_duration,
        "clock": lambda at: time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at else "–",
    }
    return environment


def format_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV; a text that a spreadsheet would run as a formula is quoted; control characters go."""

    def cell(value: Any) -> Any:
        return plain(f"'{value}" if value.startswith(FORMULA) else value) if isinstance(value, str) else value

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([cell(row.get(column)) for column in columns] for row in rows)
    return out.getvalue()


def render(directory: Path, summary: Summary, embed_bytes: int = EMBED_BYTES) -> str:
    """Return the page as HTML."""
    published = summary.published[0].percent if summary.published else None
    gallery = clips(directory, summary, embed_bytes)
    notes = summary.invocations[-1]["notes"] if summary.invocations else {}
    last = {name: notes[name] for name in ("commit", "machine") if name in notes}
    provenance = []  # of everything that the run depends on
    for name, value in [*flatten(summary.identity).items(), *flatten(last).items()]:
        if isinstance(value, (list, tuple)):
            value = ", ".join(str(Part(**item)) if isinstance(item, dict) else str(item) for item in value)
        if value not in (None, "", {}):
            provenance.append((name, str(value)))
    return templates(DIRECTORY).get_template("report.html.j2").render(
        s=summary, ablations=inputs.ABLATIONS, low_high=summary.rate.interval, bar=interval_bar, verdict=verdict,
        provenance=provenance,
        overall=interval_bar(summary.rate, summary.complete, 26, published), split=timing_split(summary),
        failures=[clip for clip in gallery if not clip["episode"].success],
        successes=[clip for clip in gallery if clip["episode"].success],
        failed_count=summary.done - summary.rate.successes,
        linked=any(clip["video"] and not clip["video"].startswith("data:") for clip in gallery),
    )  # fmt: skip


def render_board(board: Mapping[str, Any]) -> str:
    """Return the leaderboard's page as HTML."""
    template = templates(DIRECTORY).get_template("leaderboard.html.j2")
    return template.render(board=board, bar=interval_bar, rate=Rate, title=title, kinds=kinds)
