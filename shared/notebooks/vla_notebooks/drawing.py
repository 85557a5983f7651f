"""Drawings as HTML: lines between words, bars, images with captions, animations.

Text has JupyterLab's own colour, for its light and dark theme. Drawings scale to the available width, and images in a
row wrap.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape

import numpy as np
from PIL import Image

# readable on black and on white
COLOURS = ("#3b82f6", "#e5484d", "#2ca37a", "#c77d0a", "#8b5cf6", "#0e9aa7", "#d6409f", "#7a8288")
INK = "color:var(--jp-content-font-color1,currentColor);font-family:var(--jp-content-font-family);line-height:1.3"


def svg(width: int, height: int, parts: Sequence[str], label: str) -> str:
    """Return an SVG with a maximum width. label: for screen readers."""
    size = f'viewBox="0 0 {width} {height}" style="{INK};width:100%;max-width:{width}px;height:auto"'
    return (
        f'<svg {size} fill="currentColor" font-size="13" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def text(x: float, y: float, content: object, anchor: str = "start", bold: bool = False) -> str:
    """Return text centred vertically at y. anchor: the part of it at x: start, middle or end."""
    weight = ' font-weight="bold"' if bold else ""
    middle = f'dominant-baseline="central" text-anchor="{anchor}"{weight}'
    return f'<text x="{x:.1f}" y="{y:.1f}" {middle}>{escape(str(content))}</text>'


def line(start: tuple[float, float], end: tuple[float, float], colour: str, width: float, opacity: float = 1.0) -> str:
    """Return a straight line."""
    ends = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width:g}" stroke-opacity="{opacity:.3f}"/>'


def box(x: float, y: float, width: float, height: float, colour: str, opacity: float = 1.0) -> str:
    """Return a filled rectangle."""
    geometry = f'x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{height:.1f}"'
    return f'<rect {geometry} fill="{colour}" fill-opacity="{opacity:.3f}" rx="2"/>'


def shortened(word: str, limit: int = 12) -> str:
    """Return a word, truncated to `limit` letters."""
    return word if len(word) <= limit else word[: limit - 1] + "…"


def lines_between(
    weights: np.ndarray, left: Sequence[str], right: Sequence[str], colours: Sequence[str], label: str
) -> str:
    """Return words in two columns with lines from the left to the right ones they attend to.

    weights: float [heads, left, right] from 0 to 1, the opacity of a line. colours: one per head.
    """
    step, width = 24, 360
    height = step * max(len(left), len(right)) + 8
    ends = (118.0, width - 118.0)
    parts = [
        line((ends[0], step * (row + 0.5)), (ends[1], step * (column + 0.5)), colour, 2.5, float(weight[row, column]))
        for weight, colour in zip(weights, colours, strict=True)
        for row, column in zip(*np.nonzero(weight > 0.02), strict=True)
    ]
    parts += [text(ends[0] - 6, step * (at + 0.5), shortened(word), "end") for at, word in enumerate(left)]
    parts += [text(ends[1] + 6, step * (at + 0.5), shortened(word)) for at, word in enumerate(right)]
    return svg(width, height, parts, label)


def bars(rows: Sequence[tuple[str, float]], label: str, highlighted: int | None = None) -> str:
    """Return a bar for each (word, share from 0 to 1); the row `highlighted` has another colour."""
    step, width, left = 24, 360, 118
    parts = []
    for at, (word, share) in enumerate(rows):
        colour = COLOURS[3] if at == highlighted else COLOURS[0]
        parts.append(text(left - 6, step * (at + 0.5), shortened(word), "end"))
        parts.append(box(left, step * at + 3, share * (width - left - 60), step - 6, colour))
        parts.append(text(left + share * (width - left - 60) + 6, step * (at + 0.5), f"{100 * share:.1f} %"))
    return svg(width, step * len(rows) + 4, parts, label)


def image(pixels: np.ndarray, caption: str, widest: int = 160) -> str:
    """Return an image, uint8 [h, w, 3], with a caption; pixels stay sharp."""
    data = base64.b64encode(_encoded(pixels)).decode()
    style = "width:100%;image-rendering:pixelated;display:block"
    image = f'<img alt="{escape(caption)}" style="{style}" src="data:image/png;base64,{data}">'
    figcaption = f"<figcaption>{escape(caption)}</figcaption>"
    return f'<figure style="margin:0;flex:1 1 72px;max-width:{widest}px">{image}{figcaption}</figure>'


def side_by_side(parts: Sequence[str]) -> str:
    """Return drawings in a row that wraps."""
    return f'<div style="{INK};display:flex;flex-wrap:wrap;gap:8px;font-size:13px">{"".join(parts)}</div>'


def titled(title: str, drawing: str) -> str:
    """Return a drawing with a title."""
    return f'<div style="{INK};font-size:13px;margin:4px 0">{escape(title)}</div>{drawing}'


def legend(names: Sequence[str], colours: Sequence[str]) -> str:
    """Return the names, each with a square of its colour."""
    square = "display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.3em;background:"
    named = zip(names, colours, strict=True)
    items = "".join(f'<span><i style="{square}{colour}"></i>{escape(name)}</span>' for name, colour in named)
    return f'<div style="{INK};display:flex;flex-wrap:wrap;gap:2px 12px;font-size:13px">{items}</div>'


def gif(frames: Sequence[np.ndarray], frame_ms: int = 100, scale: int = 1) -> bytes:
    """Return uint8 frames [h, w, 3] as a looping GIF whose last frame lasts a second."""
    size = (frames[0].shape[1] * scale, frames[0].shape[0] * scale)
    images = [Image.fromarray(frame).resize(size, Image.Resampling.NEAREST) for frame in frames]
    durations = [frame_ms] * (len(images) - 1) + [1000]
    written = io.BytesIO()
    images[0].save(written, "GIF", save_all=True, append_images=images[1:], duration=durations, loop=0)
    return written.getvalue()


def _encoded(pixels: np.ndarray) -> bytes:
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "PNG")
    return written.getvalue()
