"""Trainer and the bare loop: the same training twice."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from services.hf import classify, collate, headlines, loops
from services.hf.made import texts

PLAN = loops.Hyperparameters(
    steps=10, batch_size=16, lr=3e-3, warmup_steps=2, cpu=True
)  # of 40 rows: into the fourth epoch


def trained(name, auto, directory, rows, joined, plan, tmp_path, **options):
    torch.manual_seed(0)
    model = auto.from_pretrained(directory, **options)
    torch.manual_seed(123)  # what was drawn before must not count
    return loops.LOOPS[name](model, rows, joined, plan, tmp_path), model


@pytest.mark.parametrize("kind", ["bert", "gpt"])
def test_both_loops_have_the_same_losses_and_weights(kind, tokenizers, directories, tmp_path):
    tokenizer = tokenizers[kind]
    if kind == "bert":
        rows = classify.features(texts.rows("reviews", 40), tokenizer)
        joined, auto = collate.Classification(tokenizer.pad_token_id), AutoModelForSequenceClassification
    else:
        rows = headlines.features(texts.rows("news", 40), tokenizer)
        joined, auto = collate.Causal(tokenizer.pad_token_id), AutoModelForCausalLM
    (by_trainer, one), (by_hand, other) = (
        trained(name, auto, directories[kind], rows, joined, PLAN, tmp_path) for name in ("trainer", "loop")
    )
    assert len(by_trainer) == PLAN.steps and by_hand == pytest.approx(by_trainer, rel=1e-4)
    theirs = other.state_dict()
    assert all(torch.allclose(tensor, theirs[name], atol=1e-4) for name, tensor in one.state_dict().items())


def test_another_seed_has_another_order(tokenizers, directories, tmp_path):
    tokenizer = tokenizers["bert"]
    rows = classify.features(texts.rows("reviews", 40), tokenizer)
    joined = collate.Classification(tokenizer.pad_token_id)
    losses = [
        trained("loop", AutoModelForSequenceClassification, directories["bert"], rows, joined, plan, tmp_path)[0]
        for plan in (loops.Hyperparameters(2, 16, cpu=True, seed=seed) for seed in (0, 1))
    ]
    assert losses[0] != losses[1]


@pytest.mark.parametrize("name", loops.LOOPS)
def test_a_batch_can_be_learned_by_heart(name, tokenizers, directories, tmp_path):
    tokenizer = tokenizers["bert"]
    rows = classify.features(texts.rows("reviews", 16), tokenizer)
    joined, plan = collate.Classification(tokenizer.pad_token_id), loops.Hyperparameters(30, 16, lr=3e-3, cpu=True)
    losses, _ = trained(name, AutoModelForSequenceClassification, directories["bert"], rows, joined, plan, tmp_path)
    assert losses[-1] < 0.1 < 0.6 < losses[0]


def test_a_loop_says_how_far_it_is(tokenizers, directories, tmp_path, capsys):
    tokenizer = tokenizers["bert"]
    rows = classify.features(texts.rows("reviews", 16), tokenizer)
    joined, plan = collate.Classification(tokenizer.pad_token_id), loops.Hyperparameters(2, 8, cpu=True, log_every=2)
    trained("trainer", AutoModelForSequenceClassification, directories["bert"], rows, joined, plan, tmp_path)
    told = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in told] == ["step 1 of 2", "step 2 of 2"]
