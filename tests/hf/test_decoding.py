"""Our choice of words against `generate`: every token, greedy and drawn, of both kinds of model."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, TopKLogitsWarper, TopPLogitsWarper

from services.hf import collate, decoding
from services.hf.decoding import Sampling

WAYS = {
    "greedy": Sampling(),
    "all words": Sampling(1.0),
    "temperature": Sampling(0.7),
    "top-k": Sampling(1.5, top_k=5),
    "top-p": Sampling(1.3, top_p=0.6),
    "both": Sampling(2.0, top_k=20, top_p=0.9),
}
REPORTS = ["부산 시청은 수요일 야간 버스를 확대한다고 밝혔다.", "제주", "the robot does not"]
MOST = 14


@pytest.fixture(scope="module", params=["gpt", "t5"])
def asked(request, directories, tokenizers):
    """A model and a batch of unequal rows; T5 says something other than its end at once."""
    kind, tokenizer = request.param, tokenizers[request.param]
    auto = AutoModelForCausalLM if kind == "gpt" else AutoModelForSeq2SeqLM
    model = auto.from_pretrained(directories[kind]).eval()
    rows = [{"input_ids": one} for one in tokenizer(REPORTS)["input_ids"]]
    return model, collate.inputs(rows, tokenizer.pad_token_id, left=kind == "gpt")


@pytest.mark.parametrize("way", WAYS)
def test_every_token_is_the_librarys(asked, way):
    (model, batch), sampling = asked, WAYS[way]
    drawn = {"do_sample": True, "temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    torch.manual_seed(5)
    theirs = model.generate(**batch, max_new_tokens=MOST, **(drawn if sampling.temperature else {"do_sample": False}))
    begun = 1 if model.config.is_encoder_decoder else batch["input_ids"].shape[1]
    torch.manual_seed(5)
    ours = decoding.decode(model, batch, sampling, MOST)
    assert torch.equal(ours, theirs[:, begun:]) and 1 < ours.shape[1] <= MOST


def test_a_row_that_has_ended_says_nothing_more(asked, monkeypatch):
    model, batch = asked
    said = decoding.decode(model, batch, Sampling(), MOST)
    monkeypatch.setattr(model.generation_config, "eos_token_id", int(said[0, 2]))
    ended = decoding.decode(model, batch, Sampling(), MOST)
    at = ended[0].tolist().index(int(said[0, 2]))
    assert set(ended[0, at + 1 :].tolist()) <= {model.generation_config.pad_token_id}
    theirs = model.generate(**batch, max_new_tokens=MOST, do_sample=False)
    assert torch.equal(ended, theirs[:, theirs.shape[1] - ended.shape[1] :])


@pytest.mark.parametrize("p", [0.1, 0.5, 0.95])
def test_what_is_kept_is_what_the_library_keeps(p):
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0)) * 3
    assert torch.equal(decoding.keep_top_p(logits, p), TopPLogitsWarper(p)(None, logits))
    for k in (1, 7, 80):
        assert torch.equal(decoding.keep_top_k(logits, k), TopKLogitsWarper(k)(None, logits))


def test_one_word_is_always_kept():
    kept = decoding.keep_top_p(torch.tensor([[5.0, 0.0, 0.0]]), 1e-6)
    assert kept.isfinite().tolist() == [[True, False, False]]
