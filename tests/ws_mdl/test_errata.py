"""The numbers of docs/errata.md, computed anew, on both pages."""

import math
from pathlib import Path

import pytest
import torch

from lessons.exercises import NAMES
from services.ws_mdl.diffusion.schedule import linear_schedule
from services.ws_mdl.transformer.dataset import causal_mask, padding_mask
from services.ws_mdl.transformer.model import FeedForwardBlock, attention, build_transformer

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
    """Return what the first of four equal words' weights add up to where the mask comes after the softmax."""
    return float((torch.softmax(torch.zeros(4, 4), -1) * torch.ones(4, 4).tril())[0].sum())


LAST_STEP = [t - 500 // 30 for t in range(500, 0, -(500 // 30))]
FEED_FORWARD = FeedForwardBlock(512, 2048, 0.0)
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
    "2,099,712": f"{sum(p.numel() for p in FEED_FORWARD.parameters()):,}",
    "262,656": f"{512 * 512 + 512:,}",
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


def test_the_exercises_that_it_names_exist():
    for page in PAGES:
        if page.exists():
            rows = [row for row in page.read_text(encoding="utf-8").splitlines() if row.startswith("| ")]
            named = {cell.strip(" `") for row in rows if "`" in (cell := row.split("|")[-2])}
            assert len(named) >= 14 and named <= set(NAMES)


def test_two_linear_layers_without_relu_are_one():
    first, second = FEED_FORWARD.linear_1, FEED_FORWARD.linear_2
    x = torch.randn(5, 512)
    one = x @ (second.weight @ first.weight).T + second.weight @ first.bias + second.bias
    torch.testing.assert_close(second(first(x)), one, rtol=0, atol=1e-4)
    assert not torch.allclose(FEED_FORWARD(x), one, atol=1e-2)


def test_swapped_query_and_key_transpose_the_scores():
    query, key = torch.randn(2, 1, 1, 4, 8)
    torch.testing.assert_close(key @ query.transpose(-2, -1), (query @ key.transpose(-2, -1)).transpose(-2, -1))
    right, wrong = (attention(*pair, key, need_weights=True)[1] for pair in ((query, key), (key, query)))
    assert not torch.allclose(right, wrong, atol=1e-2)


def test_a_padding_mask_lets_the_decoder_see_the_next_word():
    model = build_transformer(9, 9, 4, 4, d_model=16, N=1, h=2, d_ff=32).eval()
    source, target = torch.tensor([[2, 5, 3]]), torch.tensor([[2, 5, 6]])
    other = torch.tensor([[2, 5, 7]])  # the last word is another

    def differs(mask: torch.Tensor) -> bool:
        first, second = (model(source, ids, None, mask)[:, :2] for ids in (target, other))
        return not torch.allclose(first, second)

    assert differs(padding_mask(target, 1)) and not differs(padding_mask(target, 1) & causal_mask(3))


def test_what_cannot_be_used_here():
    with pytest.raises(ModuleNotFoundError):
        import torchtext  # noqa: F401
    if not torch.backends.mps.is_available():
        with pytest.raises(RuntimeError, match="MPS"):
            torch.zeros(1, device="mps")
