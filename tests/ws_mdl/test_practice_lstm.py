"""The LSTM lab: the cell against torch's, attention, lab 1's search on top of it, training that goes on, gradients."""

import pytest
import torch

from services.ws_mdl.practice import lengths
from services.ws_mdl.practice.lstm import AdditiveAttention, Config, Sentences, Seq2Seq, lstm_cell
from services.ws_mdl.transformer.dataset import Example, PairDataset, Special, make_batch
from services.ws_mdl.transformer.decode import beam_search, greedy_decode
from services.ws_mdl.transformer.tokenization import train_tokenizer

SPECIAL = Special(pad=0, sos=1, eos=2)


def batch_of(lengths, seed=0):
    """Rows of random words of those lengths, and the same backwards."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(3, 11, (length,), generator=generator).tolist() for length in lengths]
    return make_batch([Example(row, row[::-1]) for row in rows], SPECIAL, SPECIAL)


def seq2seq(attention=True, **changes):
    torch.manual_seed(0)
    return Seq2Seq(11, 11, 8, 12, **{"dropout": 0.0, "attention": attention, **changes}).eval()


@pytest.fixture(scope="module")
def sentences():
    pairs = [("a b c", "c b a"), ("b c d e", "e d c b"), ("c a", "a c"), ("e d b", "b d e")] * 9
    pairs = [(f"{source} {letter}", f"{letter} {target}") for letter in "abcde" for source, target in pairs][:40]
    tokenizers = [train_tokenizer([pair[side] for pair in pairs], "word", 1, 100) for side in (0, 1)]
    sets = (PairDataset(part, *tokenizers, 12) for part in (pairs, pairs[:6]))
    return Sentences(*sets, tuple(tokenizers))


def read_sentence(layer, x, real, way=""):
    """Return every position's h by the cell written out, with a torch.nn.LSTM's weights; 0 for padding, where the
    state stays as it was."""
    weights = [getattr(layer, f"{name}_l0{way}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    state = x.new_zeros(len(x), layer.hidden_size), x.new_zeros(len(x), layer.hidden_size)
    outputs = [state[0]] * x.shape[1]
    for t in reversed(range(x.shape[1])) if way else range(x.shape[1]):
        new, is_real = lstm_cell(x[:, t], state, *weights), real[:, t, None]
        state = torch.where(is_real, new[0], state[0]), torch.where(is_real, new[1], state[1])
        outputs[t] = state[0] * is_real
    return torch.stack(outputs, dim=1)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_cell_by_hand_is_torchs(bidirectional):
    torch.manual_seed(0)
    theirs = torch.nn.LSTM(5, 7, batch_first=True, bidirectional=bidirectional)
    x, real = torch.randn(3, 6, 5, requires_grad=True), torch.ones(3, 6, dtype=torch.bool)
    ways = ("", "_reverse") if bidirectional else ("",)
    expected, found = theirs(x)[0], torch.cat([read_sentence(theirs, x, real, way) for way in ways], dim=-1)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(y.pow(2).sum(), x, retain_graph=True)[0] for y in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_the_layer_by_hand_reads_padded_sentences_as_the_model_does():
    model, batch = seq2seq(), batch_of([5, 2, 4])
    x, real = model.src_embed(batch.encoder_input), batch.encoder_mask[:, 0, 0]
    expected = torch.cat([read_sentence(model.encoder, x, real, way) for way in ("", "_reverse")], dim=-1)
    torch.testing.assert_close(model.encode(batch.encoder_input, batch.encoder_mask), expected)


def test_attention_weights_sum_to_one_and_leave_padding_out():
    model, batch = seq2seq(), batch_of([6, 3, 1])
    model(*batch[:2], batch.encoder_mask)
    weights, real = model.attention_scores, batch.encoder_mask[:, 0, 0]
    assert weights.shape == (3, batch.decoder_input.shape[1], batch.encoder_input.shape[1])
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:2]))
    assert (weights.masked_select(~real[:, None]) == 0).all() and (weights.masked_select(real[:, None]) > 0).all()


def test_additive_attention_is_its_formula():
    torch.manual_seed(0)
    attention, s, values = AdditiveAttention(4, 6), torch.randn(2, 4), torch.randn(2, 3, 6)
    context, weights = attention(s, attention.u(values), values, torch.ones(2, 3, dtype=torch.bool))
    w, u, v = (getattr(attention, name).weight for name in "wuv")
    energy = torch.tensor([[float(v @ torch.tanh(w @ s[b] + u @ values[b, j])) for j in range(3)] for b in range(2)])
    torch.testing.assert_close(weights, energy.softmax(dim=-1))
    torch.testing.assert_close(context, torch.stack([weights[b] @ values[b] for b in range(2)]))


@pytest.mark.parametrize("attention", [True, False])
def test_padding_changes_nothing(attention):
    model, alone, among = seq2seq(attention), batch_of([3]), batch_of([3, 9])
    expected = model(*alone[:2], alone.encoder_mask)
    found = model(*among[:2], among.encoder_mask)[:1, : expected.shape[1]]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("attention", [True, False])
def test_a_word_sees_no_later_word(attention):
    model, batch = seq2seq(attention), batch_of([6, 6])
    changed = batch.decoder_input.clone()
    changed[:, 4] = 3 + (changed[:, 4] + 1) % 8
    before, after = (model(batch.encoder_input, target, batch.encoder_mask) for target in (batch[1], changed))
    assert torch.equal(before[:, :4], after[:, :4]) and not torch.equal(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("attention", [True, False])
def test_lab_1s_searches_take_the_model_as_it_is(attention):
    model, batch = seq2seq(attention), batch_of([5, 2, 7])
    source, mask = batch.encoder_input, batch.encoder_mask
    greedy = greedy_decode(model, source, mask, SPECIAL, 9)
    assert greedy == greedy_decode(model, source, mask, SPECIAL, 9, use_cache=False)
    assert greedy == beam_search(model, source, mask, SPECIAL, 9, beam=1)
    wide = beam_search(model, source, mask, SPECIAL, 9, beam=3)
    assert wide == beam_search(model, source, mask, SPECIAL, 9, beam=3, use_cache=False)


def test_without_attention_all_of_the_source_goes_through_one_state():
    model, batch = seq2seq(attention=False), batch_of([7])
    output, real = model.encode(batch.encoder_input, batch.encoder_mask), batch.encoder_mask[:, 0, 0]
    other = output.clone()
    other[:, 2:6] += 1.0  # what stands between the ends
    for one in model.first_state(output, real), model.first_state(other, real):
        assert [part.shape for part in one] == [(1, 12), (1, 12)]
    decoded = [model.decode(x, batch.encoder_mask, batch.decoder_input) for x in (output, other)]
    assert torch.equal(*decoded)


@pytest.mark.parametrize("wrong", [{"model": "gru"}, {"hidden": 0}, {"model": "transformer", "hidden": 30}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="gru|hidden|30"):
        Config(**wrong)


def test_where_it_falls_below_half():
    assert "below half from 6 letters on" in lengths.format_shares({4: 1.0, 5: 0.5, 6: 0.49, 7: 0.6})
    assert "never below half" in lengths.format_shares({4: 1.0})


def test_accuracy_counts_whole_sequences(sentences, monkeypatch):
    def right_only_up_to_3(model, sources, *_, seq):
        return [" ".join(reversed(text.split())) if len(text.split()) <= 3 else text[:1] for text in sources]

    monkeypatch.setattr(lengths, "translate", right_only_up_to_3)
    shares = lengths.exact_by_length(None, *sentences.tokenizers, 12, (2, 3, 4), count=5)
    assert shares == {2: 1.0, 3: 1.0, 4: 0.0} and "from 4 letters on" in lengths.format_shares(shares)


def test_gradients_fade_with_distance_and_attentions_do_not():
    found = lengths.fresh_gradients(16, 31)
    left = {name: float(norms[30] / norms[0]) for name, norms in found.items()}
    assert left["tanh network"] < left["LSTM"] < left["LSTM, forget bias 1"] < 0.01
    assert left["self-attention"] > 0.05


def test_the_exponent_of_a_power_is_found():
    assert lengths.exponent({n: 3e-6 * n**1.5 for n in (64, 128, 256)}) == pytest.approx(1.5)
