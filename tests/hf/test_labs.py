"""The labs: real fine-tuning steps on small models, what is saved comes back, and what LoRA trains."""

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from services.hf import classify, collate, decoding, headlines, loops, metrics, objectives, practice, translate
from services.hf.made import texts

FLAGS = {"model": "made", "data": "made", "cpu": True, "pretrained": 20, "held": 20}


def falls(losses):
    few = len(losses) // 4
    return sum(losses[-few:]) < 0.8 * sum(losses[:few])


def test_a_classifier_learns_and_comes_back_as_it_was(volume, capsys):
    request = classify.Classify(**FLAGS, steps=40, examples=400, name="test")
    result = classify.run(request, volume)
    told = capsys.readouterr().out
    assert "model: a small bert made locally" in told and "data: reviews made locally" in told
    assert falls(result.losses) and result.scores["accuracy"] > 0.8 and 0 < result.scores["f1"] <= 1
    said = ["결말이 정말 지루했다", "연기가 훌륭했다"]
    before = classify.probabilities(result.model, result.tokenizer, said)
    directory = practice.save(request, volume, [result.model, result.tokenizer])
    assert directory == volume.path("checkpoints") / "hf" / "classify" / "test"
    assert torch.equal(classify.probabilities(*classify.load(directory), said), before)
    practice.save(request, volume, [result.tokenizer])
    assert (directory.with_name("test.before-1") / "model.safetensors").is_file(), "what was there stays"


def test_rows_without_text_are_left_out(tokenizers):
    rows = [{"document": None, "label": 1}, {"document": "", "label": 1}, {"document": "지루했다", "label": 0}]
    assert [row["label"] for row in classify.features(rows, tokenizers["bert"])] == [0]


def test_a_writer_of_headlines_learns_and_comes_back_as_it_was(volume):
    request = headlines.Headlines(**FLAGS, steps=100, batch_size=16, examples=200, by="loop", name="test")
    result = headlines.run(request, volume)
    assert falls(result.losses) and len(result.predictions) == len(result.references) == 20
    assert result.scores["rouge_l"] > 0.15
    directory = practice.save(request, volume, [result.model, result.tokenizer])
    model, tokenizer = AutoModelForCausalLM.from_pretrained(directory), AutoTokenizer.from_pretrained(directory)
    reports = [row["document"] for row in texts.rows("news", 3, seed=9)]
    both = [
        headlines.write(*one, reports, decoding.Sampling())
        for one in ((result.model, result.tokenizer), (model, tokenizer))
    ]
    assert both[0] == both[1]


def test_lora_begins_as_the_model_and_trains_its_additions_alone(directories, tokenizers, tmp_path):
    base = AutoModelForCausalLM.from_pretrained(directories["gpt"]).eval()
    rows = headlines.features(texts.rows("news", 32), tokenizers["gpt"])
    batch = collate.Causal(tokenizers["gpt"].pad_token_id)(rows[:4])
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    wanted = base(**batch).logits.detach()
    model = headlines.with_lora(base, rank=4)
    trained, of_all = headlines.trained_share(model)
    assert trained == 2 * (4 * 64 + 4 * 192) < of_all / 10, "A [4, 64] and B [192, 4] of each of two layers"
    assert torch.equal(model(**batch).logits, wanted), "B begins as zero"
    joined = collate.Causal(tokenizers["gpt"].pad_token_id)
    losses = loops.by_hand(model, rows, joined, loops.Hyperparameters(8, 8, lr=1e-2, cpu=True))
    assert losses[-1] < losses[0]
    kept = {
        name.replace(".base_layer", "").removeprefix("base_model.model."): t for name, t in model.state_dict().items()
    }
    assert all(torch.equal(tensor, kept[name]) for name, tensor in before.items() if name in kept)
    learned = model(**batch).logits.detach()
    model.save_pretrained(tmp_path)
    assert (tmp_path / "adapter_model.safetensors").stat().st_size < 100_000
    back = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(directories["gpt"]), tmp_path).eval()
    assert torch.equal(back(**batch).logits, learned)
    assert torch.allclose(back.merge_and_unload()(**batch).logits, learned, atol=1e-4), "W + B·A is one matrix again"


def test_a_translator_learns_and_comes_back_as_it_was(volume):
    request = translate.Translate(**{**FLAGS, "pretrained": 0}, steps=40, batch_size=16, examples=300, name="test")
    result = translate.run(request, volume)
    assert falls(result.losses) and len(result.predictions) == 20 and set(result.scores) == {"exact", "bleu"}
    directory = practice.save(request, volume, [result.model, result.tokenizer])
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(directory), AutoTokenizer.from_pretrained(directory)
    assert translate.translate(model, tokenizer, result.inputs[:5], "ko") == result.predictions[:5]


@pytest.mark.parametrize("objective", objectives.KINDS)
def test_both_objectives_make_kept_text_likelier(objective, volume):
    result = objectives.run(
        objectives.Objectives(**{**FLAGS, "pretrained": 0}, objective=objective, steps=25, examples=300), volume
    )
    assert result.scores["after"] < result.scores["before"] - 0.5 and falls(result.losses)
    hole = result.tokenizer.mask_token or ""
    words = objectives.likeliest(result, f"결말이 정말 {hole}")
    assert len(words) == 5 and sorted((share for _, share in words), reverse=True) == [share for _, share in words]


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"examples": -1}, "examples is -1"),
        ({"lr": 0.0}, "lr is 0.0"),
        ({"name": "../away"}, r"name '\.\./away'"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"top_k": -2}, "top_k is -2"),
        ({"top_p": 0.0}, "top_p is 0.0"),
    ],
)
def test_flags_that_make_no_sense_are_refused(flags, text):
    with pytest.raises(ValueError, match=text):
        headlines.Headlines(**flags)


def test_measures_by_hand():
    assert metrics.rouge_l("부산 시청 버스 확대", "부산 버스 확대") == pytest.approx(6 / 7)
    assert metrics.rouge_l("가", "나") == 0 and metrics.rouge_l("가 나", "가 나") == 1
    assert metrics.exact([" 가", "나"], ["가", "다"]) == 0.5
    same = ["the robot reads the old book today"]
    assert metrics.bleu(same, same) == pytest.approx(1.0) and metrics.bleu(["a b c d"], ["e f g h"]) == 0
    shorter = ["the robot reads the old book"]
    assert metrics.bleu(shorter, same) == pytest.approx(2.718281828 ** (1 - 7 / 6)), "all right, and one word short"


def test_the_metric_adds_up_batches():
    metric = metrics.Sentiment(keep_in_memory=True)
    metric.add_batch(predictions=[1, 0], references=[1, 1])
    metric.add_batch(predictions=[1, 0], references=[0, 0])
    assert metric.compute() == {"accuracy": 0.5, "f1": 0.5}
