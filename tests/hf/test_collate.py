"""Our collate functions against the library's own: the same batch, or where chance decides, the same properties."""

import pytest
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorWithPadding,
)

from services.hf import classify, collate, headlines, translate
from services.hf.collate import IGNORED
from services.hf.made import texts

REVIEWS, NEWS, PAIRS = (texts.rows(kind, 24) for kind in ("reviews", "news", "pairs"))


def same(ours, theirs):
    """Two batches: the same names, shapes and numbers."""
    assert set(ours) == set(theirs)
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
    return True


def test_classification_is_the_librarys_padding(tokenizers):
    tokenizer = tokenizers["bert"]
    rows = classify.features(REVIEWS, tokenizer)
    ours = collate.Classification(tokenizer.pad_token_id)(rows)
    assert same(ours, dict(DataCollatorWithPadding(tokenizer)(rows)))
    assert ours["input_ids"].shape[1] == max(len(row["input_ids"]) for row in rows), "and no wider"
    assert len({len(row["input_ids"]) for row in rows}) > 1, "there was something to pad"


def test_the_next_words_labels_are_the_librarys(tokenizers):
    tokenizer = tokenizers["gpt"]
    rows = [{"input_ids": tokenizer(row["document"])["input_ids"]} for row in NEWS]
    theirs = DataCollatorForLanguageModeling(tokenizer, mlm=False)(rows)
    assert same(collate.Causal(tokenizer.pad_token_id)(rows), dict(theirs))


def test_a_headline_is_learned_and_its_report_is_not(tokenizers):
    tokenizer = tokenizers["gpt"]
    rows = headlines.features(NEWS, tokenizer)
    ours = collate.Causal(tokenizer.pad_token_id)(rows)
    theirs = DataCollatorForSeq2Seq(tokenizer)([dict(row) for row in rows])
    assert torch.equal(ours["labels"], theirs["labels"]) and torch.equal(ours["input_ids"], theirs["input_ids"])
    for row, labels in zip(NEWS, ours["labels"], strict=True):
        counted = tokenizer.decode(labels[labels != IGNORED])
        assert counted == f" {row['title']}{tokenizer.eos_token}"


def test_pairs_are_the_librarys_and_the_decoder_never_reads_what_it_is_to_say(tokenizers, directories):
    tokenizer, model = tokenizers["t5"], AutoModelForSeq2SeqLM.from_pretrained(directories["t5"])
    rows = translate.features(PAIRS, tokenizer)
    ours = collate.PairCollator(tokenizer.pad_token_id, model.config.decoder_start_token_id)(rows)
    assert same(ours, dict(DataCollatorForSeq2Seq(tokenizer, model=model)([dict(row) for row in rows])))
    assert torch.equal(ours["decoder_input_ids"][:, 1:], ours["labels"][:, :-1].where(ours["labels"][:, :-1] >= 0, 0))


def test_masking_has_the_librarys_shares(tokenizers):
    """15 % are asked for; of those 80 % hidden, 10 % another word, 10 % as they were. Special tokens never."""
    tokenizer = tokenizers["bert"]
    rows = [{"input_ids": tokenizer(row["document"])["input_ids"]} for row in texts.rows("reviews", 1500)]
    plain = collate.inputs(rows, tokenizer.pad_token_id)["input_ids"]
    special = torch.isin(plain, torch.tensor(tokenizer.all_special_ids))
    torch.manual_seed(0)
    for batch in (collate.Masked.of(tokenizer)(rows), DataCollatorForLanguageModeling(tokenizer)(rows)):
        ids, labels = batch["input_ids"], batch["labels"]
        asked = labels != IGNORED
        assert torch.equal(labels[asked], plain[asked]) and torch.equal(ids[~asked], plain[~asked])
        assert not (asked & special).any()
        count = int(asked.sum())
        assert count / int((~special).sum()) == pytest.approx(0.15, abs=0.015)
        assert int((ids[asked] == tokenizer.mask_token_id).sum()) / count == pytest.approx(0.8, abs=0.04)
        assert int((ids[asked] == plain[asked]).sum()) / count == pytest.approx(0.1, abs=0.03)


def test_masking_draws_again_each_time_and_the_same_from_the_same_seed(tokenizers):
    rows = classify.features(REVIEWS, tokenizers["bert"])
    first, second = collate.Masked.of(tokenizers["bert"], seed=3), collate.Masked.of(tokenizers["bert"], seed=3)
    ours = [first(rows) for _ in range(2)]
    assert not torch.equal(ours[0]["labels"], ours[1]["labels"])
    assert same(ours[0], second(rows)) and same(ours[1], second(rows))


def test_rows_are_filled_up_on_either_side():
    assert collate.padded([[1, 2, 3], [4]], fill=9).tolist() == [[1, 2, 3], [4, 9, 9]]
    assert collate.padded([[1, 2, 3], [4]], fill=9, left=True).tolist() == [[1, 2, 3], [9, 9, 4]]
