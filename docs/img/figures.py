"""Draw one figure per lesson as SVG next to this file: `python3 docs/img/figures.py`."""

from __future__ import annotations

from html import escape
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).parent
FILL = {"data": "#eef2f7", "layer": "#dbe8fb", "attention": "#fbe3c8", "norm": "#fdf3c7", "merge": "#ffffff"}
INK = "#1f2937"
HEIGHT = 34


class Figure:
    """An SVG of boxes and arrows. Coordinates are pixels; a box is named by its center."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" font-family="sans-serif" font-size="13" role="img">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0 8 4 0 8z" fill="{INK}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
        ]

    def box(self, x: int, y: int, width: int, text: str, kind: str = "layer") -> None:
        """Draw a box with its text."""
        self.parts.append(
            f'<rect x="{x - width // 2}" y="{y - HEIGHT // 2}" width="{width}" height="{HEIGHT}" rx="6" '
            f'fill="{FILL[kind]}" stroke="{INK}"/>'
        )
        self.text(x, y + 5, text)

    def text(self, x: int, y: int, text: str) -> None:
        """Write centered text."""
        self.parts.append(f'<text x="{x}" y="{y}" text-anchor="middle" fill="{INK}">{escape(text)}</text>')

    def arrow(self, *points: tuple[int, int]) -> None:
        """Draw a line through points with an arrow head at its end."""
        path = " ".join(f"{x},{y}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{INK}" marker-end="url(#head)"/>')

    def chain(self, x: int, width: int, boxes: list[tuple[int, str, str]]) -> None:
        """Draw boxes (y, text, kind) in one column, each with an arrow to the next."""
        for y, text, kind in boxes:
            self.box(x, y, width, text, kind)
        for (y, *_), (after, *_) in pairwise(boxes):
            step = HEIGHT // 2 if after > y else -HEIGHT // 2
            self.arrow((x, y + step), (x, after - step))

    def bar(self, x: int, y: int, width: int, low: int, high: int, kind: str) -> None:
        """Draw a bar from x to the right with an interval; low and high are distances from x."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="24" fill="{FILL[kind]}" stroke="{INK}"/>'
            f'<path d="M{x + low} {y + 8}v8m0-4H{x + high}m0-4v8" fill="none" stroke="{INK}" stroke-width="2"/>'
        )

    def svg(self) -> str:
        """Return the file's text."""
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def transformer() -> str:
    """Return the encoder block and the decoder block of lessons/transformer.py, layer normalization first."""
    figure = Figure(680, 640, "Transformer: one encoder block and one decoder block, pre-norm")

    def block(x: int, bottom: int, sublayers: list[tuple[str, str]]) -> int:
        """Draw norm → sublayer → + for each sublayer, upwards. Return the y of the last +."""
        y = bottom
        for text, kind in sublayers:
            rows = [(y, "layer normalization", "norm"), (y - 50, text, kind), (y - 100, "+", "merge")]
            figure.chain(x, 190, rows)
            figure.arrow((x, y + 32), (x - 120, y + 32), (x - 120, y - 100), (x - 95, y - 100))
            figure.arrow((x, y + 32), (x, y + HEIGHT // 2))
            y -= 150
        return y + 50

    figure.text(150, 180, "encoder block × N")
    figure.text(600, 80, "decoder block × N")
    figure.box(150, 610, 190, "source + positions", "data")
    figure.arrow((150, 593), (150, 562))
    top = block(150, 530, [("self-attention", "attention"), ("feed forward: 4 × wider, ReLU", "layer")])
    figure.box(490, 610, 190, "target + positions", "data")
    figure.arrow((490, 593), (490, 562))
    names = ["self-attention, causal mask", "cross-attention", "feed forward: 4 × wider, ReLU"]
    block(490, 530, list(zip(names, ("attention", "attention", "layer"), strict=True)))
    # Keys and values of the cross-attention are the encoder's output.
    figure.arrow((150, top - HEIGHT // 2), (150, top - 60), (320, top - 60), (320, 330), (395, 330))
    figure.text(235, top - 68, "keys and values")
    figure.arrow((490, 113), (490, 62))
    figure.box(490, 45, 190, "linear → next word", "data")
    return figure.svg()


def unet() -> str:
    """Return the network of lessons/diffusion.py with its sizes: f features, pictures h high."""
    figure = Figure(760, 400, "U-Net: down, up, and the skip connections; time and class enter on the way up")
    figure.chain(130, 200, [
        (40, "noisy picture: c, h × h", "data"), (110, "init_conv: f, h × h", "layer"),
        (180, "down1: f, h/2 × h/2", "layer"), (250, "down2: 2f, h/4 × h/4", "layer"),
    ])  # fmt: skip
    figure.chain(440, 200, [
        (250, "up0: 2f, h/4 × h/4", "layer"), (180, "up1: f, h/2 × h/2", "layer"),
        (110, "up2: f, h × h", "layer"), (40, "out: the noise, c, h × h", "data"),
    ])  # fmt: skip
    figure.box(285, 350, 200, "to_vec: 2f, 1 × 1")
    figure.arrow((130, 267), (130, 350), (185, 350))
    figure.arrow((385, 350), (440, 350), (440, 267))
    # Each skip arrives before the layer that concatenates it.
    for y, before, name in ((250, 215, "down2"), (180, 145, "down1"), (110, 75, "init_conv")):
        figure.arrow((230, y), (285, y), (285, before), (437, before))
        figure.text(350, before - 6, f"skip: {name}")
    figure.box(650, 145, 180, "time t, class c", "data")
    for y in (215, 145):
        figure.arrow((560, 145), (545, 145), (545, y), (443, y))
    figure.text(650, 185, "class · x + time")
    return figure.svg()


def vla() -> str:
    """Return the policy of lessons/vla.py: OpenVLA's sizes."""
    figure = Figure(760, 400, "OpenVLA: picture and instruction to seven numbers")
    figure.box(160, 40, 220, "picture 224 × 224", "data")
    figure.arrow((110, 57), (90, 93))
    figure.arrow((210, 57), (240, 93))
    figure.box(90, 110, 140, "DINOv2: 1024")
    figure.box(240, 110, 140, "SigLIP: 1152")
    figure.arrow((90, 127), (130, 163))
    figure.arrow((240, 127), (200, 163))
    figure.chain(160, 240, [(180, "256 patches × 2176", "merge"), (250, "projector: 256 × 4096", "layer")])
    figure.chain(560, 260, [(40, "instruction → prompt", "data"), (180, "word embeddings: 4096", "layer")])
    figure.box(360, 320, 480, "Llama 2, 7B: 32 blocks over [BOS] patches words", "attention")
    figure.arrow((160, 267), (160, 303))
    figure.arrow((560, 197), (560, 303))
    figure.text(360, 365, "7 tokens, one after another → bin centers in [−1, 1] → un-normalized")
    figure.text(360, 386, "Δx Δy Δz, Δroll Δpitch Δyaw, gripper")
    return figure.svg()


# success of 100 episodes and the ends of its 95 % interval, %; bench/RESULTS.md, mini-VLA
LEARNED = {
    "learned without images": {"usual places": (84, 76, 90), "anywhere": (0, 0, 4)},
    "learned to look": {"usual places": (78, 69, 85), "anywhere": (86, 78, 91)},
}


def learning() -> str:
    """Return what mini-VLA solves of libero_object, without and with its cameras."""
    figure = Figure(680, 190, "mini-VLA on LIBERO's objects: success without and with images")
    for row, (policy, rates) in enumerate(LEARNED.items()):
        figure.text(110, 62 + 80 * row, policy)
        for line, (places, (rate, low, high)) in enumerate(rates.items()):
            y = 35 + 80 * row + 34 * line
            figure.bar(330, y, 3 * rate, 3 * low, 3 * high, "data" if line else "layer")
            figure.text(275, y + 16, places)
            figure.text(330 + 3 * high + 32, y + 16, f"{rate} %")
    return figure.svg()


FIGURES = {"transformer-block.svg": transformer, "unet.svg": unet, "vla.svg": vla, "learning.svg": learning}

if __name__ == "__main__":
    for name, draw in FIGURES.items():
        (HERE / name).write_text(draw(), encoding="utf-8")
