"""Images of the kit, drawn from numbers: surfaces (wood, tiles, plaster, metal), labels, and texture atlases.

All randomness comes from generators seeded with the surface's name, so the same bytes come out every time.
Colours are RGB 0 to 255.
"""

from __future__ import annotations

import zlib
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from services.libero.assets.kit.mesh import Skin

Colour = tuple[int, int, int]


def rng(name: str) -> np.random.Generator:
    """Return the random generator that belongs to a surface's name."""
    return np.random.default_rng(zlib.crc32(name.encode()))


@cache
def font(size: int) -> ImageFont.ImageFont:
    """Return Pillow's own font at `size` pixels; no font file of the machine is used."""
    return ImageFont.load_default(size=size)


def noise(gen: np.random.Generator, shape: tuple[int, int], cells: tuple[int, int]) -> np.ndarray:
    """Return smooth noise [h, w] in -1..1 that tiles; `cells` = (rows, columns) of its coarse lattice."""
    lattice = gen.uniform(-1, 1, cells)

    def axis(n, m):
        t = np.arange(n) * m / n
        i, f = t.astype(int), t % 1
        return i % m, (i + 1) % m, f * f * (3 - 2 * f)

    r0, r1, fr = axis(shape[0], cells[0])
    c0, c1, fc = axis(shape[1], cells[1])
    rows = lattice[r0] * (1 - fr)[:, None] + lattice[r1] * fr[:, None]
    return rows[:, c0] * (1 - fc) + rows[:, c1] * fc


def shade(base: Colour, light: np.ndarray) -> Image.Image:
    """Return the image of `base` scaled per pixel by `light` [h, w] (1 = unchanged)."""
    return Image.fromarray(np.clip(np.array(base) * light[..., None], 0, 255).round().astype(np.uint8))


def wood(name: str, base: Colour, size: int = 256, planks: int = 4, grain: float = 0.16) -> Image.Image:
    """Return a square image of boards whose grain runs to the right, with dark joints."""
    gen, rows = rng(name), size // planks
    boards = []
    for _ in range(planks):
        warp = noise(gen, (rows, size), (3, 4)) * 2.2
        y = np.linspace(0, 5, rows)[:, None] + warp + gen.uniform(0, 9)
        rings = np.abs((y * 1.7) % 2 - 1)
        fine = noise(gen, (rows, size), (rows // 2, 6))
        light = 1 + grain * (rings - 0.5) + 0.5 * grain * fine + gen.uniform(-0.07, 0.07)
        light[-1:] *= 0.72
        boards.append(light)
    light = np.concatenate(boards)
    return shade(base, np.vstack([light, np.ones((size - len(light), size))]) if len(light) < size else light)


def plaster(name: str, base: Colour, size: int = 256, rough: float = 0.05) -> Image.Image:
    """Return a square image of a wall: cloudy, finely grained."""
    gen = rng(name)
    clouds = noise(gen, (size, size), (4, 4)) + 0.5 * noise(gen, (size, size), (11, 11))
    return shade(base, 1 + rough * (0.6 * clouds + 0.5 * noise(gen, (size, size), (size // 2, size // 2))))


def tiles(name: str, base: Colour, joint: Colour, size: int = 256, n: int = 4, rough: float = 0.06) -> Image.Image:
    """Return a square image of n x n tiles, each of its own tone, with joints."""
    gen, cell = rng(name), size // n
    tone = np.repeat(np.repeat(gen.uniform(-1, 1, (n, n)), cell, 0), cell, 1)
    light = 1 + rough * (0.6 * tone + 0.8 * noise(gen, (n * cell,) * 2, (9, 9)))
    image = np.array(shade(base, light))
    width = max(1, cell // 32)
    for k in range(n):
        image[k * cell : k * cell + width] = joint
        image[:, k * cell : k * cell + width] = joint
    return Image.fromarray(image).resize((size, size))


def weave(name: str, base: Colour, size: int = 128, n: int = 12) -> Image.Image:
    """Return a basket weave: strands that pass over and under each other."""
    y, x = np.mgrid[0:size, 0:size] / size * n
    over = (np.floor(x) + np.floor(y)) % 2
    across = np.sin(np.pi * (y % 1)) * over + np.sin(np.pi * (x % 1)) * (1 - over)
    return shade(base, 0.55 + 0.5 * across + 0.06 * noise(rng(name), (size, size), (16, 16)))


def metal(name: str, base: Colour, size: int = 128) -> Image.Image:
    """Return brushed metal, the strokes running to the right."""
    return shade(base, 1 + 0.08 * noise(rng(name), (size, size), (size // 2, 3)))


def fitted(draw: ImageDraw.ImageDraw, text: str, centre, width: float, height: float, colour: Colour) -> None:
    """Write `text` (may hold newlines) around `centre`, as large as width x height pixels allow."""
    size = 6
    for size in range(6, 120, 2):
        x0, y0, x1, y1 = draw.multiline_textbbox((0, 0), text, font=font(size + 2), align="center", spacing=1)
        if x1 - x0 > width or y1 - y0 > height:
            break
    draw.multiline_text(centre, text, font=font(size), fill=colour, anchor="mm", align="center", spacing=1)


def label(
    text: str,
    ground: Colour,
    ink: Colour,
    size=(192, 128),
    band: Colour | None = None,
    motif: str = "",
    blob: Colour = (200, 60, 40),
) -> Image.Image:
    """Return a product label: ground colour, an optional band behind the name, a simple motif below it.

    `motif` is "" (none), "disc", "leaf", "drops" or "letters".
    """
    image = Image.new("RGB", size, ground)
    draw = ImageDraw.Draw(image)
    w, h = size
    name_y = 0.36 * h if motif else 0.5 * h
    if band:
        draw.rectangle((0, name_y - 0.2 * h, w, name_y + 0.2 * h), fill=band)
    cx, cy, r = w / 2, 0.78 * h, 0.17 * h
    dark = tuple(int(0.7 * c) for c in blob)
    if motif == "disc":
        for dx in (-1.6, 0, 1.6):
            draw.ellipse((cx + dx * r - r, cy - r, cx + dx * r + r, cy + r), fill=blob, outline=dark)
    elif motif == "leaf":
        draw.ellipse((cx - 1.7 * r, cy - 0.7 * r, cx + 1.7 * r, cy + 0.7 * r), fill=blob, outline=dark)
        draw.line((cx - 2 * r, cy, cx + 1.4 * r, cy), fill=dark, width=2)
    elif motif == "drops":
        for k in range(7):
            x, y = cx + (k - 3) * 0.8 * r, cy + (0.4 if k % 2 else -0.3) * r
            draw.ellipse((x - 0.3 * r, y - 0.4 * r, x + 0.3 * r, y + 0.4 * r), fill=blob)
    elif motif == "letters":
        gen = rng(text)
        for k in range(10):
            spot = (cx + (k - 4.5) * 0.09 * w, cy + gen.uniform(-0.6, 0.5) * r)
            draw.text(spot, "ABCDEFGHIJ"[k], font=font(max(8, int(0.11 * h))), fill=blob, anchor="mm")
    fitted(draw, text, (w / 2, name_y), 0.88 * w, 0.34 * h if motif else 0.6 * h, ink)
    return image


class Atlas:
    """Packs images and flat colours into one texture and hands out the skins that show them.

    Images are put on shelves from the top left; each keeps a margin of one repeated pixel against bleeding.
    """

    def __init__(self, size: int = 256, ground: Colour = (128, 128, 128)):
        self.image = Image.new("RGB", (size, size), ground)
        self._x = self._y = self._shelf = 0

    def add(self, image: Image.Image) -> Skin:
        """Return the skin of `image` after copying it in; raises ValueError when the atlas is full."""
        w, h = image.width + 2, image.height + 2
        if self._x + w > self.image.width:
            self._x, self._y, self._shelf = 0, self._y + self._shelf, 0
        if self._y + h > self.image.height or w > self.image.width:
            raise ValueError(f"no room for a {w}x{h} image in an atlas of {self.image.size}; make the atlas larger")
        x, y = self._x, self._y
        self.image.paste(image.resize((w, h)), (x, y))
        self.image.paste(image, (x + 1, y + 1))
        self._x, self._shelf = x + w, max(self._shelf, h)
        size = self.image.width
        return ((x + 1.5) / size, (y + 1.5) / size, (x + w - 1.5) / size, (y + h - 1.5) / size)

    def flat(self, colour: Colour) -> Skin:
        """Return the skin of a plain colour: the middle of its patch, away from the neighbours' colours."""
        u0, v0, u1, v1 = self.add(Image.new("RGB", (10, 10), colour))
        u, v, inset = (u0 + u1) / 2, (v0 + v1) / 2, 0.1 * (u1 - u0)
        return (u - inset, v - inset, u + inset, v + inset)
