"""`./lab audit`: its command line, the lines it prints, and its page. A benchmark's module calls `main`."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tyro
from matplotlib.figure import Figure
from PIL import Image
from rich.markup import escape

from vla_common import entrypoint
from vla_common.volume import Volume, display_path
from vla_contract import PolicyClient, PolicyInfo
from vla_datasets import audit as data_audit
from vla_datasets.loader import find, open_dataset
from vla_evaluation.agreement import choose_profile, choose_unnorm_key
from vla_evaluation.audit.recorded import RecordedEpisodes
from vla_evaluation.audit.run import Audit, audit
from vla_evaluation.benchmark import Benchmark
from vla_evaluation.config import EvalConfig, token_of
from vla_evaluation.dataset_options import AuditOptions, parse_cameras
from vla_evaluation.evaluate import reach_policy
from vla_evaluation.offline.policy_view import PolicyView, view_as
from vla_evaluation.offline.program import data_uri
from vla_evaluation.offline.scores import dimension_names
from vla_evaluation.report.page import DIRECTORY, templates
from vla_evaluation.terminal import say, single_line

PAGE = "audit.html.j2"
COLUMNS = 4  # plots side by side


def main(benchmark: Benchmark, cameras: Mapping[str, str], arguments: Sequence[str], prog: str) -> int:
    """Audit a policy; return 1 if something is wrong. cameras: `usual_cameras` of `view_as`."""
    options = tyro.cli(AuditOptions, prog=prog, args=list(arguments))
    log = sys.stderr if options.json else sys.stdout
    if not options.policy_url:
        return of_dataset(options)
    config = EvalConfig("", policy_url=options.policy_url)
    info = reach_policy(config)
    if info.suites and not options.dataset and options.suite not in info.suites:
        raise ValueError(f"policy {info.name!r} was made for {', '.join(info.suites)}; add --suite {info.suites[0]}")
    recording = Volume().demonstrations / f"audit-{options.suite}"
    dataset = open_dataset(find(options.dataset)) if options.dataset else RecordedEpisodes(recording, cameras)
    profile = benchmark.profiles[choose_profile(info, benchmark, None)]
    key = choose_unnorm_key(info, profile.unnorm_keys_for(options.suite), options.unnorm_key)
    view = view_as(dataset, info, benchmark.profiles, cameras, parse_cameras(options.cameras), key)
    kit = ((dataset.source or {}).get("assets") or {}).get("kind") == "kit"
    familiar = not kit or any("kit" in text for text in info.details.values())
    executed = min(profile.execute or info.horizon, info.horizon)
    console = entrypoint.console(file=sys.stderr)
    limit_s = options.act_timeout_s
    client = PolicyClient(options.policy_url, token_of(config), limit_s, 2 * limit_s, retries=2)
    with client, console.status("") as status:

        def tick(sent: int) -> None:
            status.update(escape(f"auditing {single_line(info.name)}: {sent} of at most {options.requests} requests"))

        result = audit(client, view, dataset.fps, executed, options.requests, familiar, tick)
    directory = Volume().logs / "audit" / (options.name or f"{dataset.name}-{info.name}")
    directory.mkdir(parents=True, exist_ok=True)
    facts = {"policy": info.name, "data set": dataset.name, "notes": list(view.notes), **result.as_json()}
    (directory / "audit.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    (directory / "audit.html").write_text(render(result, view), encoding="utf-8")
    if options.json:
        print(json.dumps(facts, indent=1))
    else:
        describe(result, info)
    say(f"page: {display_path(directory / 'audit.html')}", log)
    return 1 if result.wrong else 0


def of_dataset(options: AuditOptions) -> int:
    """Print what a data set's own numbers and frames make suspicious; suspicions are no faults, so return 0."""
    result = data_audit.audit(find(options.dataset or ""))
    say(json.dumps(result.to_dict(), indent=1) if options.json else "\n".join(result.lines()))
    return 0


def describe(result: Audit, info: PolicyInfo) -> None:
    """Print a line for each convention, and cause and fix below what is wrong."""
    say(f"policy {single_line(info.name)}: {len(result.moments)} recorded moments")
    for verdict in sorted(result.verdicts, key=lambda verdict: verdict.verdict == "not applicable"):
        text = ": ".join(filter(None, (", ".join(verdict.findings), verdict.evidence)))
        say(f"  {verdict.verdict:<14} {verdict.convention}: {single_line(text)}")
        for cause, fix in verdict.advice:
            say(f"  {'':<14}   likely: {cause}")
            say(f"  {'':<14}   fix: {fix}")
    say(result.summary)


def render(result: Audit, view: PolicyView) -> str:
    """Return the page: verdicts, the images as the policy gets them, and answers against recorded actions."""
    pictures = []
    for seen in result.moments.observations[:3]:
        for camera, image in seen.images.items():
            stream = io.BytesIO()
            Image.fromarray(image).save(stream, "PNG")
            pictures.append((f"{camera}: {seen.instruction}", data_uri(stream.getvalue())))
    order = ("wrong", "cannot tell", "fine", "not applicable")
    verdicts = sorted(result.verdicts, key=lambda verdict: order.index(verdict.verdict))
    template = templates(Path(__file__).parent, DIRECTORY).get_template(PAGE)
    page: str = template.render(
        policy=view.info.name, dataset=view.dataset.name, result=result, verdicts=verdicts, pictures=pictures,
        plot=plot(result, view), notes=view.notes,
    )  # fmt: skip
    return page


def plot(result: Audit, view: PolicyView) -> str:
    """Return a PNG as a data URI: for each axis the first action of every answer against the recorded one."""
    names = dimension_names(view.info.action)
    rows = -(-len(names) // COLUMNS)
    figure = Figure(figsize=(2.6 * COLUMNS, 2.6 * rows), dpi=90, layout="constrained")
    axes = np.atleast_1d(figure.subplots(rows, COLUMNS)).ravel()
    recorded, answered = result.moments.at(0, 1)[:, 0], result.answers[:, 0]
    for i, name in enumerate(names):
        axes[i].scatter(recorded[:, i], answered[:, i], s=8, color="#c9701a", alpha=0.7)
        ends = np.nanquantile(recorded[:, i], (0, 1))
        axes[i].plot(ends, ends, color="#3b7ddd", lw=1)
        axes[i].set(title=name, xlabel="recorded", ylabel="answered")
    for unused in axes[len(names) :]:
        unused.set_visible(False)
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return data_uri(stream.getvalue())
