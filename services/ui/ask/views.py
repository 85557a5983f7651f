"""The page's pieces of HTML, from values to text. Whatever comes from elsewhere is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape

from services.ui.ask.actions import GRIPPERS, Number, Spec, unit_of
from services.ui.ask.link import PolicyStatus, Trouble
from vla_contract import ActionChunk, PolicyInfo

STAGES = {  # the server's stages in their order; what is left of the round trip is the way there and back
    "decode": "decode",
    "queue": "queue",
    "infer": "inference",
    "encode": "encode",
    "network": "network",
}
EMPTY = '<p class="vl-quiet">Ask, and the numbers of the next action appear here.</p>'


def banner(status: PolicyStatus, url: str) -> str:
    """Returns one line on the policy: its name where it is ready, else what is wrong and what to do."""
    if status.trouble is not None:
        return trouble(status.trouble)
    return f'<div class="vl-banner vl-good"><b>{escape(status.info.name)}</b> is ready <code>{escape(url)}</code></div>'


def trouble(what: Trouble) -> str:
    """Returns an error as a card."""
    kind = "vl-wait" if what.passing else "vl-bad"
    lines = [escape(line) for line in what.detail.splitlines()]
    detail = f"<p>{lines[0]}</p>" if len(lines) == 1 else f"<ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>"
    todo = _with_commands(what.todo)
    return (
        f'<div class="vl-banner {kind}" role="alert"><b>{escape(what.title)}</b>{detail if lines else ""}'
        f'<p class="vl-todo">{todo}</p></div>'
    )


def _with_commands(text: str) -> str:
    """Returns the text with each command of `./lab`, which stands between backticks, as code."""
    return re.sub(r"`(.+?)`", r"<code>\1</code>", escape(text))


def numbers(values: list[Number], spec: Spec) -> str:
    """Returns the table of an action's numbers, each with a bar from the middle, and what leaves its range in words."""
    rows = "".join(_number_row(value) for value in values)
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("number", "of a full step", "value", "unit", "means"))
    said = "".join(f'<p class="vl-beyond">{escape(_beyond(value))}</p>' for value in values if value.limit)
    table = f'<table class="vl-numbers"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
    return f'{table}{said}<p class="vl-quiet">{escape(spec.note)}</p>'


def _beyond(number: Number) -> str:
    return f"{number.name} is {number.value:+.4g}, outside {number.limit}: its bar ends in an arrow."


def _number_row(number: Number) -> str:
    left, width = 50 + min(number.share, 0) * 50, abs(number.share) * 50
    side = "" if not number.limit else " vl-over" if number.share > 0 else " vl-under"
    bar = f'<span class="vl-bar{side}"><i style="left:{left:.1f}%;width:{width:.1f}%"></i></span>'
    name, unit, means = escape(number.name), escape(number.unit), escape(number.means)
    value = f'<td class="vl-value">{number.value:+.4f}</td>'
    return f'<tr><th scope="row">{name}</th><td>{bar}</td>{value}<td>{unit}</td><td>{means}</td></tr>'


def chunk(answer: ActionChunk, spec: Spec) -> str:
    """Returns every action of a chunk of more than one, a row each; nothing for a single action."""
    if len(answer.actions) == 1:
        return ""
    named = [(name, "" if part.convention in GRIPPERS else unit_of(part)) for name, part in spec.numbers]
    heads = "".join(
        f'<th scope="col">{escape(n.replace("rotation", "rot"))}<small>{escape(u)}</small></th>' for n, u in named
    )
    rows = "".join(_chunk_row(step, action) for step, action in enumerate(answer.actions.tolist(), 1))
    title = f"<h3>Chunk of {len(answer.actions)} actions</h3>"
    table = f'<table class="vl-chunk"><tr><th scope="col">step</th>{heads}</tr>{rows}</table>'
    return f'{title}<div class="vl-scroll" tabindex="0" role="region" aria-label="all actions">{table}</div>'


def _chunk_row(step: int, action: Iterable[float]) -> str:
    return f"<tr><th scope='row'>{step}</th>{''.join(f'<td>{value:+.3f}</td>' for value in action)}</tr>"


def latency(timings_ms: Mapping[str, float]) -> str:
    """Returns where the round trip went: a bar of its parts and the same in numbers (ms)."""
    parts = split(timings_ms)
    total = sum(parts.values()) or 1.0
    bar = "".join(f'<i class="vl-{stage}" style="width:{100 * ms / total:.2f}%"></i>' for stage, ms in parts.items())
    legend = "".join(
        f'<li><i class="vl-{stage}"></i>{STAGES[stage]} <b>{ms:.1f} ms</b></li>' for stage, ms in parts.items()
    )
    inside = {k: v for k, v in timings_ms.items() if k not in STAGES and k != "round_trip"}
    more = "".join(f"<li>{escape(str(k))} <b>{v:.1f} ms</b></li>" for k, v in inside.items())
    told = f'<p class="vl-quiet">The policy itself counts:</p><ul class="vl-legend">{more}</ul>' if more else ""
    title = f"<h3>Latency <b>{total:.1f} ms</b></h3>"
    return f'{title}<div class="vl-stack">{bar}</div><ul class="vl-legend">{legend}</ul>{told}'


def side_by_side(columns: Mapping[str, str]) -> str:
    """Returns several answers' HTML beside each other, below each other where there is little room, by name."""
    sections = "".join(f"<section><h2>{escape(name)}</h2>{html}</section>" for name, html in columns.items())
    return f'<div class="vl-several">{sections}</div>'


def split(timings_ms: Mapping[str, float]) -> dict[str, float]:
    """Returns the round trip in parts (ms) that add up to it: the server's stages, and the network with this page."""
    parts = {stage: float(timings_ms[stage]) for stage in STAGES if stage in timings_ms}
    if "round_trip" in timings_ms:
        parts["network"] = max(0.0, timings_ms["round_trip"] - sum(parts.values()))
    return parts


def identity(info: PolicyInfo | None) -> str:
    """Returns what the policy says it is, as names and values; what else it tells is there to unfold."""
    if info is None:
        return '<p class="vl-quiet">Unknown until the policy answers.</p>'
    more = {name: str(value) for name, value in info.details.items() if name != "attention"}
    told = f"<details><summary>More that it tells</summary>{_listed(more)}</details>" if more else ""
    return _listed(details(info)) + told


def _listed(values: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in values.items() if value)
    return f'<dl class="vl-details">{rows}</dl>'


def details(info: PolicyInfo) -> dict[str, str]:
    """Returns the policy's identity in words; an empty text where there is nothing to tell."""
    size = f"{info.image_hw[1]}×{info.image_hw[0]}" if info.image_hw else "any size"
    checkpoint = info.checkpoint
    return {
        "policy": info.name,
        "checkpoint": checkpoint.repo if checkpoint else "none: a policy without weights",
        "revision": checkpoint.revision if checkpoint else "",
        "weights sha256": (checkpoint.sha256 or "unknown")[:16] if checkpoint else "",
        "quantization": info.quantization,
        "device": info.device,
        "attention": str(info.details.get("attention", "")),
        "pictures": f"{', '.join(info.cameras)}; {size}" if info.cameras else "looks at none",
        "chunk": f"up to {info.horizon} actions" if info.horizon > 1 else "1 action",
        "made for": ", ".join(info.suites),
        "lock": (info.lock_hash or "")[:16],
    }
