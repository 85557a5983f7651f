"""The verdict on a run that repeats a published evaluation."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from vla_evaluation.report.data import Summary, differing_settings
from vla_evaluation.report.stats import Rate, fisher_exact
from vla_evaluation.store.files import write_text
from vla_evaluation.store.runstore import read_run
from vla_evaluation.terminal import say, single_line

FILE = "reproduction.json"
SIGNIFICANCE = 0.05  # a smaller p-value makes two success rates incompatible


def judge(directory: Path, model: str, console: Console) -> None:
    """Test a complete run against its profile's published row of `model`; print the verdict and write FILE.

    The two rates are independent samples, so the test is Fisher's, with the published row's own number of episodes.
    Raises ValueError for an incomplete run and an unknown model.
    """
    with read_run(directory) as store:
        summary, description = Summary(directory, store), store.described()
    if not summary.complete:
        raise ValueError(f"{directory.name} has {summary.done} of {summary.planned} episodes; resume it first")
    rows = {row["model"]: row for row in description["profile"]["published"]}
    if model not in rows:
        raise ValueError(f"profile {summary.identity['profile']} has no published row {model!r}; known: {list(rows)}")
    row = rows[model]
    episodes = row["trials"] * len(description["tasks"])
    published = Rate(round(row["success_percent"] / 100 * episodes), episodes)
    p_value = fisher_exact(summary.rate.successes, summary.rate.trials, published.successes, published.trials)
    is_compatible = p_value >= SIGNIFICANCE
    unlike = description["assets"]["unlike"]
    differences = [
        *([unlike] if unlike else []),
        *differing_settings(summary.identity, description, summary.complete, summary.invocations),
        *([row["differs"]] if row["differs"] else []),
    ]
    policy = summary.identity["policy"]
    details = {
        name: policy[name] for name in ("quantization", "device") if policy.get(name) not in (None, "none")
    } | dict(policy.get("details") or {})
    result = {
        "run_id": summary.run_id, "suite": summary.suite, "profile": summary.identity["profile"], "model": model,
        "source": row["source"], "successes": summary.rate.successes, "episodes": summary.rate.trials,
        "wilson_95": summary.rate.interval, "published_percent": row["success_percent"],
        "published_episodes": episodes, "p_value": p_value, "compatible": is_compatible, "differences": differences,
        "policy": details,
    }  # fmt: skip
    write_text(directory / FILE, json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    say(f"ours:      {summary.rate}", console.file)
    low_high = f"95 % {published.percent_interval} %"
    say(
        f"published: {row['success_percent']:g} % of {episodes} episodes, {low_high}, {model}, {row['source']}",
        console.file,
    )
    for difference in differences:
        say(f"differs:   {single_line(difference)}", console.file)
    if details:
        say(f"policy:    {single_line(', '.join(f'{name} {value}' for name, value in details.items()))}", console.file)
    verdict = "compatible" if is_compatible else "not compatible"
    say(f"verdict:   {verdict} (Fisher's exact test, two-sided: p = {p_value:.3g})", console.file)
