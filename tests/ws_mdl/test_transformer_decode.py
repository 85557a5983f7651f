"""Decoding: with and without cache, alone and in a batch, greedy and beam; and what the attention pictures show."""

import itertools

import pytest
import torch

from services.ws_mdl.transformer import decode, visualize
from services.ws_mdl.transformer.dataset import Special, pad_rows, padding_mask
from services.ws_mdl.transformer.model import build_transformer
from services.ws_mdl.transformer.tokenization import train_tokenizer

SPECIAL = Special(pad=1, sos=2, eos=3)
MAX_LEN = 12
CACHE = pytest.mark.parametrize("use_cache", [True, False])


@pytest.fixture
def sources() -> tuple[torch.Tensor, torch.Tensor]:
    """Eight sentences of 1 to 8 words as ids [8, 10], and their mask."""
    draw = torch.Generator().manual_seed(1)
    rows = [[2, *torch.randint(4, 40, (length,), generator=draw).tolist(), 3] for length in range(1, 9)]
    source = pad_rows(rows, 1)
    return source, padding_mask(source, 1)


@pytest.fixture
def ending(transformer):
    """The model, inclined to end some sentences early."""
    source, target = torch.randint(4, 40, (30, 6)), torch.randint(4, 37, (30, 5))
    with torch.no_grad():
        scores = transformer(source, target, None, None).flatten(0, 1)
        lacks = (scores.max(dim=-1).values - scores[:, SPECIAL.eos]).quantile(0.3)
        transformer.projection_layer.proj.bias[SPECIAL.eos] += lacks
    return transformer


def log_probability(model, source: torch.Tensor, ids: list[int]) -> float:
    """Return log p(ids [EOS] | source) by one pass over the whole sentence, words that are none left out."""
    tokens = torch.tensor([[SPECIAL.sos, *ids]])
    mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
    scores = model(source, tokens, None, mask)[0]
    scores[:, [SPECIAL.pad, SPECIAL.sos]] = float("-inf")
    return float(scores.log_softmax(-1).gather(1, torch.tensor([*ids, SPECIAL.eos])[:, None]).sum())


@CACHE
@pytest.mark.parametrize("beam", [1, 3])
def test_a_batch_translates_like_its_sentences_alone(ending, sources, beam, use_cache):
    source, mask = sources
    together = decode.beam_search(ending, source, mask, SPECIAL, MAX_LEN, beam, use_cache=use_cache)
    for row, found in zip(source, together, strict=True):
        alone = row[row != 1][None]
        single = decode.beam_search(ending, alone, padding_mask(alone, 1), SPECIAL, MAX_LEN, beam, use_cache=use_cache)
        assert single == [found]


def test_greedy_with_cache_without_and_a_beam_of_one_agree(ending, sources):
    greedy = decode.greedy_decode(ending, *sources, SPECIAL, MAX_LEN)
    assert greedy == decode.greedy_decode(ending, *sources, SPECIAL, MAX_LEN, use_cache=False)
    assert greedy == decode.beam_search(ending, *sources, SPECIAL, MAX_LEN, beam=1)
    assert any(len(ids) < MAX_LEN - 1 for ids in greedy), "some end before the limit"
    assert all(len(ids) < MAX_LEN and not {1, 2, 3} & set(ids) for ids in greedy)


def test_beam_search_with_and_without_cache_agree(ending, sources):
    with_cache = decode.beam_search(ending, *sources, SPECIAL, MAX_LEN, beam=4)
    assert with_cache == decode.beam_search(ending, *sources, SPECIAL, MAX_LEN, beam=4, use_cache=False)


def test_a_wide_beam_finds_the_most_probable_translation():
    torch.manual_seed(3)
    model = build_transformer(10, 7, 8, 8, d_model=16, N=1, h=2, d_ff=32).eval()
    with torch.no_grad():
        model.projection_layer.proj.weight *= 6
    source = torch.tensor([[2, 5, 6, 3]])
    vocabulary = [0, 4, 5, 6]  # all that is a word
    every = [list(ids) for length in range(4) for ids in itertools.product(vocabulary, repeat=length)]
    best = max(every, key=lambda ids: log_probability(model, source, ids))
    (found,) = decode.beam_search(model, source, padding_mask(source, 1), SPECIAL, max_len=5, beam=300, penalty=0.0)
    assert log_probability(model, source, found) == pytest.approx(log_probability(model, source, best), abs=1e-4)


def test_a_beam_of_none_is_named(ending, sources):
    with pytest.raises(ValueError, match="beam is 0"):
        decode.beam_search(ending, *sources, SPECIAL, MAX_LEN, beam=0)


@pytest.fixture
def tokenizer():
    return train_tokenizer(["a b c d e f g"], "word", 1, 0)


@pytest.fixture
def speaker(tokenizer):
    size = tokenizer.get_vocab_size()
    torch.manual_seed(0)
    model = build_transformer(size, size, 12, 12, d_model=16, N=2, h=2, d_ff=32).eval()
    with torch.no_grad():
        model.projection_layer.proj.bias[SPECIAL.eos] = -1.0  # not every translation is empty
    return model


@pytest.mark.parametrize("beam", [1, 3])
def test_texts_are_translated_in_their_order_whatever_the_batches(speaker, tokenizer, beam):
    texts = ["a b c d e", "a", "c b", "g f e d", "b"]
    together = decode.translate(speaker, texts, tokenizer, tokenizer, seq=12, beam=beam)
    by_two = decode.translate(speaker, texts, tokenizer, tokenizer, seq=12, beam=beam, batch=2)
    alone = [decode.translate(speaker, [text], tokenizer, tokenizer, seq=12, beam=beam)[0] for text in texts]
    assert by_two == together == alone and len(set(together)) > 1


def test_a_length_penalty_favours_longer_translations(speaker, tokenizer):
    def tokens(penalty: float) -> int:
        found = decode.translate(speaker, ["a b c", "g f e d"], tokenizer, tokenizer, seq=12, beam=6, penalty=penalty)
        return sum(len(text.split()) for text in found)

    assert tokens(0.0) < tokens(10.0)


@pytest.mark.parametrize(
    ("text", "message"), [("", "is empty"), ("a " * 11, "has 13 tokens; the model takes at most 12")]
)
def test_a_sentence_that_cannot_be_read_is_named(speaker, tokenizer, text, message):
    with pytest.raises(ValueError, match=message):
        decode.translate(speaker, ["a", text], tokenizer, tokenizer, seq=12)


def test_attention_maps_are_the_models_own_and_leave_it_as_it_was(transformer):
    source, target = torch.randint(4, 37, (1, 7)), torch.randint(4, 37, (1, 5))
    maps = visualize.attention_maps(transformer, source, target)
    assert [tuple(part.shape) for part in maps] == [(2, 4, 7, 7), (2, 4, 5, 5), (2, 4, 5, 7)]
    for part in maps:
        torch.testing.assert_close(part.sum(-1), torch.ones(part.shape[:-1]))
    assert (maps.decoder.triu(1) == 0).all(), "nobody looks ahead"
    transformer(source, target, None, None)
    assert all(getattr(m, "attention_scores", None) is None for m in transformer.modules())


def test_images_are_drawn_for_korean_too(speaker, tokenizer, tmp_path, recwarn):
    view = visualize.look(speaker, "a b c", "d e", tokenizer, tokenizer)
    assert view.source == ["[SOS]", "a", "b", "c", "[EOS]"] and view.target == ["d", "e", "[EOS]"]
    assert view.maps.cross.shape == (2, 2, 3, 5)
    drawn = [
        visualize.plot_attention(view.maps.cross, ["문을", "열다", "."], view.source, "교차 주의"),
        visualize.plot_positions(speaker.src_pos.pe[0]),
        visualize.plot_masks(torch.tensor([[5, 5, 1]]), 1, 4),
        visualize.plot_curve([{"seconds": 60, "train_loss": 2.0, "loss": 3.0, "bleu": 0.1}], "curve"),
    ]
    for i, figure in enumerate(drawn):
        assert visualize.save(figure, tmp_path / f"{i}.png").read_bytes().startswith(b"\x89PNG")
    assert [str(w.message) for w in recwarn if "Glyph" in str(w.message)] == []
