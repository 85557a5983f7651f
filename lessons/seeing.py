"""Lesson 4: a policy that has to look. Train it blind, be surprised, then make it see.

A picture shows a red and a blue square, a word names one of them, and the answer is where it is. Run
`./lab shell ws_mdl --command "python -m lessons.seeing"` (a minute on one core). Read from top to bottom: each part
uses only what is above. `services/minivla/model.py` is the same idea with real images, sentences and an arm. Comments
at the end of a line give shapes, and a test checks each of them.
"""

import torch
from torch import Tensor, nn

SIDE, CELL = 32, 4  # pixels of a picture, and of a cell of the feature map
USUAL = ((10, 10), (22, 22))  # where the red and the blue square usually are, x and y in pixels
NARROW, WIDE = 2, 12  # pixels that a square may be away from there: as in LIBERO, and anywhere
CLOSE = 2 * 3 / SIDE  # an answer within 3 pixels is a success: the fingers would span it


# --- 1. the task -----------------------------------------------------------------------------------------------
def draw(count: int, spread: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return pictures, words (0 red, 1 blue) and the places of the named squares, x right and y down in [-1, 1]."""
    pixels = torch.tensor(USUAL) + torch.randint(-spread, spread + 1, (count, 2, 2), generator=rng)  # (count, 2, 2)
    pixels = pixels.clamp(2, SIDE - 3)
    pictures = 0.3 + 0.1 * torch.rand((count, 3, SIDE, SIDE), generator=rng)  # (count, 3, SIDE, SIDE)
    for picture, squares in zip(pictures, pixels.tolist(), strict=True):
        for (x, y), colour in zip(squares, (0, 2), strict=True):
            picture[:, y - 2 : y + 3, x - 2 : x + 3] = 0
            picture[colour, y - 2 : y + 3, x - 2 : x + 3] = 1
    words = torch.randint(2, (count,), generator=rng)  # (count)
    places = (pixels[torch.arange(count), words] + 0.5) * 2 / SIDE - 1  # (count, 2)
    return pictures, words, places


# --- 2. a blind policy -----------------------------------------------------------------------------------------
class Blind(nn.Module):
    """Remembers one place per word. Where things hardly move, nothing more is needed."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.Embedding(2, 2)

    def forward(self, pictures: Tensor, words: Tensor) -> Tensor:
        return self.memory(words)  # (batch, 2)


# --- 3. a policy that looks ------------------------------------------------------------------------------------
def cell_centres(side: int, cell: int) -> Tensor:
    """Return the places of a feature map's cells, row by row: x to the right and y down, in [-1, 1]."""
    centres = (torch.arange(side // cell) + 0.5) * 2 * cell / side - 1  # (rows)
    y, x = torch.meshgrid(centres, centres, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], dim=-1)  # (cells, 2)


def where(scores: Tensor, cells: Tensor) -> Tensor:
    """Return the mean place over all cells, each as probable as its score says: finer than a cell, with a gradient."""
    p = torch.softmax(scores, dim=-1)  # (batch, cells)
    return p @ cells  # (batch, 2)


class Seeing(nn.Module):
    """The word asks every cell of the picture: are you what I mean? The answers' mean place is the answer."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 2 * CELL, CELL, CELL // 2), nn.GELU(), nn.Conv2d(width, width, 1))
        self.question = nn.Embedding(2, width)
        self.register_buffer("cells", cell_centres(SIDE, CELL))

    def scores(self, pictures: Tensor, words: Tensor) -> Tensor:
        features = self.stem(pictures).flatten(2)  # (batch, width, cells)
        return (self.question(words)[:, None] @ features)[:, 0]  # (batch, cells)

    def forward(self, pictures: Tensor, words: Tensor) -> Tensor:
        return where(self.scores(pictures, words), self.cells)  # (batch, 2)


# --- 4. labels that cost nothing -------------------------------------------------------------------------------
def bell(places: Tensor, cells: Tensor, width: float) -> Tensor:
    """Return the probability of each cell to learn from: a bell around the place, which a simulator knows."""
    squared = (places[:, None] - cells).square().sum(dim=-1)  # (batch, cells)
    return torch.softmax(-squared / width**2, dim=-1)  # (batch, cells)


def ahead(places: Tensor, hand: Tensor, scales: tuple[float, ...]) -> Tensor:
    """Return places as seen from the hand, coarse and fine: an arm acts on this, wherever things are in the room."""
    offset = places - hand  # (batch, 2)
    scaled = [torch.tanh(offset * scale) for scale in scales]
    return torch.cat(scaled, dim=-1)  # (batch, both)


# --- 5. training, and what to be surprised about ---------------------------------------------------------------
def train(policy: nn.Module, spread: int, steps: int = 300) -> nn.Module:
    """Train on pictures whose squares are up to `spread` pixels from their usual places."""
    rng, optimizer = torch.Generator().manual_seed(1), torch.optim.Adam(policy.parameters(), 0.02)
    for _ in range(steps):
        pictures, words, places = draw(64, spread, rng)
        loss = (policy(pictures, words) - places).abs().mean()
        if isinstance(policy, Seeing):
            scores = policy.scores(pictures, words).log_softmax(dim=-1)  # (batch, cells)
            loss = loss - (bell(places, policy.cells, 2 * CELL / SIDE) * scores).sum(dim=-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy


@torch.no_grad()
def success(policy: nn.Module, spread: int) -> float:
    """Return the share of new pictures in which the answer is close enough."""
    pictures, words, places = draw(500, spread, torch.Generator().manual_seed(2))
    return float(((policy(pictures, words) - places).norm(dim=-1) < CLOSE).float().mean())


if __name__ == "__main__":
    torch.manual_seed(0)
    for name, spread in (("at usual places", NARROW), ("anywhere", WIDE)):
        for kind in (Blind, Seeing):
            policy = train(kind(), spread)
            known, wide = (f"{100 * success(policy, far):.0f} %" for far in (NARROW, WIDE))
            print(f"trained with squares {name}, {kind.__name__}: success {known} at usual places, {wide} anywhere")
