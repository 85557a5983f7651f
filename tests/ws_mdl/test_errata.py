"""The numbers of docs/errata.md, computed anew, on both pages."""

import math
from pathlib import Path

import pytest
import torch

from lessons.exercises import NAMES
from services.ws_mdl.diffusion.schedule import linear_schedule

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "errata.md", DOCS / "ko" / "errata.md"]
EVEN = torch.arange(0, 512, 2).double()
ANGLES, DOUBLED = (10000 ** (-factor * EVEN / 512) for factor in (1, 2))
AB = linear_schedule(500, 1e-4, 0.02).ab_t.double()
BETA_1 = 1e-4 + (0.02 - 1e-4) / 500


def smoothed_floor(words: int, smoothing: float = 0.1) -> float:
    rest = smoothing / words
    right = 1 - smoothing + rest
    return -right * math.log(right) - (words - 1) * rest * math.log(rest)


def weights_left() -> float:
    """Returns what the first of four equal words' weights add up to where the mask comes after the softmax."""
    return float((torch.softmax(torch.zeros(4, 4), -1) * torch.ones(4, 4).tril())[0].sum())


LAST_STEP = [t - 500 // 30 for t in range(500, 0, -(500 // 30))]
NUMBERS = {
    "60,611": f"{2 * math.pi / float(ANGLES[-1]):,.0f}",
    "585": f"{2e-6 * math.pi / float(DOUBLED[-1]):.0f}",
    "110": str(int((349 * DOUBLED < 0.01).sum()) - int((349 * ANGLES < 0.01).sum())),
    "0.354": f"{math.sqrt(64 / 512):.3f}",
    "0.25": f"{weights_left():.2f}",
    "65,504": f"{torch.finfo(torch.float16).max:,.0f}",
    "0.99902": f"{math.sqrt(511 / 512):.5f}",
    "0.000699": f"{512**-0.5 * 4000**-0.5:.6f}",
    "1.315": f"{smoothed_floor(20_000):.3f}",
    "0.799": f"{float(AB[250] + (1 - AB[250]) ** 2):.3f}",
    "0.0118": f"{math.sqrt(BETA_1):.4f}",
    "1.5": f"{math.sqrt(BETA_1) * 127.5:.1f}",
    "−12": str(LAST_STEP[-1]).replace("-", "−"),
    "32": str(len(LAST_STEP)),
    "0.0078": f"{float(AB[LAST_STEP[-1]]):.4f}",
    "0.9999": f"{1 - 1e-4:.4f}",
    "0.00784": f"{2 / 255:.5f}",
    "212.5": f"{224 * math.sqrt(0.9):.1f}",
    "201.6": f"{224 * 0.9:.1f}",
}


@pytest.mark.parametrize("said", NUMBERS)
def test_a_number_of_the_page_is_what_comes_out(said):
    assert NUMBERS[said] == said
    for page in PAGES:
        if page.exists():
            assert said in page.read_text(encoding="utf-8"), page


def test_the_exercises_that_it_names_are_there():
    for page in PAGES:
        if page.exists():
            rows = [row for row in page.read_text(encoding="utf-8").splitlines() if row.startswith("| ")]
            named = {cell.strip(" `") for row in rows if "`" in (cell := row.split("|")[-2])}
            assert len(named) >= 14 and named <= set(NAMES)
