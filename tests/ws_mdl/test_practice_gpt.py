"""The small GPT: nobody looks ahead, torch's layers with the same weights, sampling by hand, and an honest 5-gram."""

import itertools
import random
from collections import Counter

import pytest
import torch

from services.ws_mdl.practice import gpt, text
from services.ws_mdl.practice.gpt import GPT, Config, generate, load, next_probabilities
from services.ws_mdl.practice.ngram import KneserNey
from tests.ws_mdl.practice import corpus, stirred

WORDS, SEQ = 30, 12


def model(positions: str = "learned") -> GPT:
    return stirred(GPT(WORDS, SEQ, d_model=16, N=2, h=2, d_ff=24, positions=positions))


@torch.no_grad()
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "relative", "none"])
def test_nobody_looks_ahead(positions):
    ours, ids = model(positions), torch.randint(WORDS, (2, SEQ))
    changed = ids.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % WORDS
    before, after = ours(ids), ours(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.isclose(before[:, 7:], after[:, 7:]).all(-1).any(), "each place sees itself and what is before"


@torch.no_grad()
def test_each_held_out_token_is_guessed_once_with_half_a_window_before_it():
    ours, draw = model(), random.Random(0)
    short, long = ([draw.randrange(WORDS) for _ in range(count)] for count in (SEQ + 1, 40))

    def cost(stream: list[int], at: int, context: int) -> float:
        ids = torch.tensor([stream[max(0, at - context) : at]])
        return -ours(ids)[0, -1].log_softmax(-1)[stream[at]].item()

    whole = sum(cost(short, at, SEQ) for at in range(1, len(short)))
    assert gpt.val_nats(ours, [short], SEQ) == pytest.approx(whole, rel=1e-4)
    assert gpt.val_nats(ours, [short, short], SEQ) == pytest.approx(2 * whole, rel=1e-4)
    # after the first window each one begins half a window before the first token that it guesses
    starts = {at: 0 if at <= 12 else 6 * ((at - 13) // 6) + 6 for at in range(1, 40)}
    by_hand = sum(cost(long, at, at - starts[at]) for at in range(1, 40))
    assert min(at - start for at, start in starts.items() if at > 12) > SEQ // 2
    assert gpt.val_nats(ours, [long], SEQ) == pytest.approx(by_hand, rel=1e-4)


LIKELY = torch.tensor([[0.1, 0.4, 0.3, 0.2]])


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, [0.1, 0.4, 0.3, 0.2]),
        ({"temperature": 0}, [0, 1, 0, 0]),
        ({"temperature": 0.5}, [0.01 / 0.3, 0.16 / 0.3, 0.09 / 0.3, 0.04 / 0.3]),
        ({"top_k": 2}, [0, 4 / 7, 3 / 7, 0]),
        ({"top_k": 9}, [0.1, 0.4, 0.3, 0.2]),
        ({"top_p": 0.39}, [0, 1, 0, 0]),
        ({"top_p": 0.5}, [0, 4 / 7, 3 / 7, 0]),
        ({"top_p": 0.85}, [0, 4 / 9, 3 / 9, 2 / 9]),
        ({"top_k": 3, "top_p": 0.7}, [0, 4 / 7, 3 / 7, 0]),  # of three they have 4/9, 3/9 and 2/9
        ({"temperature": 0.5, "top_p": 0.6}, [0, 16 / 25, 9 / 25, 0]),
    ],
)
def test_the_next_token_is_drawn_from_what_was_requested(asked, expected):
    torch.testing.assert_close(next_probabilities(LIKELY.log(), **asked), torch.tensor([expected]).float())


@pytest.mark.parametrize("wrong", [{"temperature": -1}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.1}])
def test_a_distribution_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match=r"expected >= 0, >= 0, in"):
        next_probabilities(LIKELY.log(), **wrong)


@torch.no_grad()
def test_generated_tokens_come_as_often_as_the_model_says():
    ours = model()
    ids = torch.tensor([[3, 1, 4]])
    said = next_probabilities(ours(ids)[:, -1], temperature=2.0)[0]
    rows = generate(ours, ids.expand(4000, -1), 1, torch.Generator().manual_seed(0), temperature=2.0)
    often = torch.bincount(rows[:, 3], minlength=WORDS) / 4000
    assert torch.equal(rows[:, :3], ids.expand(4000, -1)) and (often - said).abs().max() < 0.03
    greedy = generate(ours, ids, SEQ + 5, torch.Generator(), temperature=0)  # longer than a window
    for at in range(3, greedy.shape[1]):
        assert greedy[0, at] == ours(greedy[:, max(0, at - SEQ) : at])[0, -1].argmax()


def test_a_bigram_is_what_one_counts_by_hand():
    # a b a b a c: after a stand b, b, c; after b stands a, twice. Different tokens before: a has b and the beginning,
    # b and c have a
    found = KneserNey([[0, 1, 0, 1, 0, 2]], vocabulary=4, order=2)
    high = 1 / (1 + 2 * 2)  # "a c" was counted once, "a b" and "b a" twice
    low = 2 / (2 + 2 * 1)  # b and c follow one token each, a two
    alone = [max(count - low, 0) / 4 + low * 3 / 4 / 4 for count in (2, 1, 1, 0)]
    assert [found.probability([], token) for token in range(4)] == pytest.approx(alone)
    after_a = [max(count - high, 0) / 3 + high * 2 / 3 * alone[token] for token, count in enumerate((0, 2, 1, 0))]
    assert [found.probability([1, 0], token) for token in range(4)] == pytest.approx(after_a)
    assert found.probability([3], 1) == pytest.approx(alone[1]), "3 was never seen: what is known without it"


def test_it_gives_all_tokens_together_one_in_every_context():
    draw = random.Random(0)
    streams = [[draw.choice([0, 0, 0, 1, 2, 3]) for _ in range(40)] for _ in range(4)]
    found = KneserNey(streams, vocabulary=6, order=4)
    for context in [[], *([*one] for length in (1, 3, 5) for one in itertools.product(range(5), repeat=length))][:300]:
        assert sum(found.probability(context, token) for token in range(6)) == pytest.approx(1)


def test_what_is_held_out_is_neither_learned_from_nor_known_to_the_tokenizer(tmp_path, volume):
    path = corpus(tmp_path)
    found = text.load(Config(corpus=path, held_fraction=0.2), "word", 100, volume)
    assert (len(found.train), len(found.val)) == (8, 2) and all(len(block) == text.RUN for block in found.val)
    name = found.tokenizer.id_to_token
    learned, val = ([list(map(name, ids)) for block in part for ids in block] for part in (found.train, found.val))
    numbers = Counter(word for words in (learned, val) for one in words for word in one if word.isdecimal())
    assert not numbers, "a number stands in one line alone: the tokenizer knows none"
    texts = text.read(path, None, volume)
    blocks = [texts[at : at + text.RUN] for at in range(0, len(texts), text.RUN)]
    sizes = [sum(len(line) + 1 for line in block) for block in blocks]
    assert found.val_characters in {one + other for one in sizes for other in sizes}


def test_tokens_are_characters_where_that_is_requested(tmp_path, volume):
    found = text.load(Config(corpus=corpus(tmp_path), held_fraction=0.2), "character", 1000, volume)
    tokens = [found.tokenizer.id_to_token(token) for token in found.val[0][0]]
    assert all(len(token) == 1 for token in tokens) and "".join(tokens).replace("▁", " ").startswith(" the ")


@pytest.mark.parametrize(
    ("name", "holds", "says"),
    [
        ("few.txt", "one line", r"has 1 texts; expected 32 at least"),
        ("odd.txt", b"\xff\xfe", r"odd.txt is not UTF-8 \(byte 0\)"),
        ("short.txt", "\n".join(map(str, range(40))), "expected more than seq = 128"),
        ("nowhere.txt", None, "not found"),
        ("none", None, "corpus 'none' not found"),
    ],
)
def test_a_corpus_that_cannot_be_read_says_why(tmp_path, volume, name, holds, says):
    path = tmp_path / name
    if holds is not None:
        path.write_bytes(holds if isinstance(holds, bytes) else holds.encode())
    with pytest.raises(ValueError, match=says):
        load(Config(corpus=str(path) if "." in name else name), volume)
