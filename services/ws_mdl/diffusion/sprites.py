"""Draw 16 × 16 sprites of the course's five classes, as a stand-in for its arrays.

Shapes and colours are random within a class, so a class has thousands of variants.
"""

from __future__ import annotations

import colorsys

import numpy as np

CLASSES = ("hero", "non-hero", "food", "spell", "side-facing")
SIZE = 16
SKINS = ((255, 219, 172), (224, 172, 105), (198, 134, 66), (141, 85, 36))
_Y, _X = np.mgrid[0:SIZE, 0:SIZE]

Color = tuple[int, int, int]


def sprite(kind: int, rng: np.random.Generator) -> np.ndarray:
    """Return one sprite of class number `kind`: uint8 [16, 16, 3] on a white ground."""
    canvas = np.full((SIZE, SIZE, 3), 255, np.uint8)
    (_hero, _monster, _food, _spell, _side_facing)[kind](canvas, rng)
    return canvas


def make_sprites(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return sprites uint8 [count, 16, 16, 3] and their class numbers int64 [count], every class equally often."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % len(CLASSES))
    return np.stack([sprite(int(kind), rng) for kind in labels]), labels.astype(np.int64)


def _color(rng: np.random.Generator, low: float = 0.35, high: float = 0.95) -> Color:
    red, green, blue = colorsys.hsv_to_rgb(rng.random(), rng.uniform(0.5, 1.0), rng.uniform(low, high))
    return int(255 * red), int(255 * green), int(255 * blue)


def _clothes(rng: np.random.Generator) -> tuple[Color, Color, Color, Color]:
    """Return the colours of skin, hair, shirt and trousers."""
    return SKINS[rng.integers(len(SKINS))], _color(rng, 0.1, 0.8), _color(rng), _color(rng, 0.2, 0.6)


def _darker(color: Color) -> Color:
    return color[0] * 2 // 3, color[1] * 2 // 3, color[2] * 2 // 3


def _boxes(canvas: np.ndarray, color: Color, *boxes: tuple[int, int, int, int]) -> None:
    """Fill boxes (top, left, height, width)."""
    for top, left, height, width in boxes:
        canvas[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)] = color


def _disc(canvas: np.ndarray, y: float, x: float, ry: float, rx: float, color: Color) -> None:
    canvas[((_Y - y) / ry) ** 2 + ((_X - x) / rx) ** 2 <= 1] = color


def _dots(canvas: np.ndarray, positions: list[tuple[int, int]], color: Color) -> None:
    for y, x in positions:
        canvas[y, x] = color


def _hero(canvas: np.ndarray, rng: np.random.Generator) -> None:
    """A person seen from the front: two eyes, two arms, two legs."""
    skin, hair, shirt, trousers = _clothes(rng)
    wide = int(rng.integers(0, 2))
    _boxes(canvas, skin, (2, 5, 5, 6))
    _boxes(canvas, hair, (1, 5, 2, 6))
    if rng.random() < 0.5:  # long hair
        _boxes(canvas, hair, (2, 4, 4, 1), (2, 11, 4, 1))
    _dots(canvas, [(4, 6), (4, 9)], (20, 20, 30))
    _boxes(canvas, shirt, (7, 5 - wide, 4, 6 + 2 * wide))
    _boxes(canvas, skin, (7, 4 - wide, 3, 1), (7, 11 + wide, 3, 1))
    _boxes(canvas, trousers, (11, 5, 3, 2), (11, 9, 3, 2))
    _boxes(canvas, _darker(trousers), (14, 5, 1, 2), (14, 9, 1, 2))


def _monster(canvas: np.ndarray, rng: np.random.Generator) -> None:
    """A blob with eyes, perhaps horns, and a few short feet."""
    color = _color(rng)
    height, width = rng.uniform(4, 5.5), rng.uniform(5, 7)
    _disc(canvas, 8.5, 7.5, height, width, color)
    _boxes(canvas, color, (9, int(8 - width), 4, int(2 * width)))
    for left in range(int(8 - width), int(7 + width), int(rng.integers(3, 5))):
        _boxes(canvas, _darker(color), (13, left, 2, 2))
    if rng.random() < 0.5:
        _dots(canvas, [(2, 4), (3, 4), (2, 11), (3, 11), (1, 3), (1, 12)], _darker(color))
    eyes = (7,) if rng.random() < 0.3 else (5, 9)
    for left in eyes:
        _boxes(canvas, (250, 250, 250), (6, left, 3, 2))
        canvas[7, left + int(rng.integers(0, 2))] = (10, 10, 10)
    _boxes(canvas, (60, 10, 20), (11, 6, 1, 4))


def _food(canvas: np.ndarray, rng: np.random.Generator) -> None:
    """A fruit with a stalk, or a loaf."""
    if rng.random() < 0.65:
        color = _color(rng, 0.6, 1.0)
        radius = rng.uniform(4.2, 5.8)
        _disc(canvas, 9.5, 7.5, radius, radius * rng.uniform(0.85, 1.15), color)
        _disc(canvas, 7.5, 5.5, 1.3, 1.3, tuple((255 + 2 * part) // 3 for part in color))
        _boxes(canvas, (96, 60, 24), (2, 7, 3, 1))
        _boxes(canvas, (60, 150, 50), (2, 8, 1, int(rng.integers(2, 4))))
        return
    crust = (int(rng.integers(180, 225)), int(rng.integers(110, 150)), int(rng.integers(40, 80)))
    _disc(canvas, 9, 7.5, 4, 6.5, crust)
    _boxes(canvas, _darker(crust), (10, 1, 3, 14))
    for left in (4, 7, 10):
        _dots(canvas, [(6, left), (7, left + 1), (8, left + 1)], (250, 225, 170))


def _spell(canvas: np.ndarray, rng: np.random.Generator) -> None:
    """Rays round a bright middle."""
    color = _color(rng, 0.7, 1.0)
    reach = int(rng.integers(5, 8))
    center = 7
    for step in range(1, reach + 1):
        shade = color if step < reach - 1 else _darker(color)
        ends = [(center - step, center), (center + step, center), (center, center - step), (center, center + step)]
        _dots(canvas, ends, shade)
        if step <= reach - 2:
            corners = [(center + a * step, center + b * step) for a in (-1, 1) for b in (-1, 1)]
            _dots(canvas, corners, _darker(color))
    _disc(canvas, center, center, 2.6, 2.6, color)
    _disc(canvas, center, center, 1.3, 1.3, (255, 255, 225))
    for y, x in rng.integers(0, SIZE, (int(rng.integers(2, 6)), 2)):
        canvas[y, x] = color


def _side_facing(canvas: np.ndarray, rng: np.random.Generator) -> None:
    """A person in profile, walking, with something in the hand; looks left or right."""
    skin, hair, shirt, trousers = _clothes(rng)
    _boxes(canvas, skin, (2, 5, 5, 5), (4, 10, 1, 1))  # face and nose
    _boxes(canvas, hair, (1, 4, 2, 6), (2, 4, 4, 2))
    canvas[4, 8] = (20, 20, 30)
    _boxes(canvas, shirt, (7, 5, 4, 4))
    _boxes(canvas, skin, (8, 8, 1, 3))
    stride = int(rng.integers(0, 2))
    _boxes(canvas, trousers, (11, 4 - stride, 4, 2))
    _boxes(canvas, _darker(trousers), (11, 7 + stride, 4, 2))
    if rng.random() < 0.6:  # a blade
        _boxes(canvas, (190, 195, 205), (4, 12, 6, 1))
        _boxes(canvas, (120, 80, 30), (9, 11, 1, 3))
    if rng.random() < 0.5:
        canvas[:] = canvas[:, ::-1].copy()
