"""What stands in for the hub: texts, tokenizers, and models in its format."""

import json
import re

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from services.hf import tokens
from services.hf.made import models, texts

COLUMNS = {"reviews": {"id", "document", "label"}, "news": {"title", "document"}, "pairs": {"translation"}}


@pytest.mark.parametrize("kind", texts.MAKERS)
def test_rows_have_the_columns_of_the_hubs_and_none_comes_twice(kind):
    rows = texts.rows(kind, 800)
    assert len(rows) == 800 and all(set(row) == COLUMNS[kind] for row in rows)
    assert len({str(row[texts.DISTINCT[kind]]) for row in rows}) == 800
    assert rows == texts.rows(kind, 800) and rows[:50] != texts.rows(kind, 50, seed=1)


def test_a_review_is_as_it_says_and_no_single_word_tells():
    """With "not" in some of them, words of praise stand in both classes."""
    liked = {past for _, past in texts.LIKED} | {f"{stem}지 않았다" for stem, _ in texts.DISLIKED}
    rows = texts.rows("reviews", 1000)
    for row in rows:
        assert row["label"] == any(said in row["document"] for said in liked), row
    for word in ("훌륭", "지루"):
        assert {row["label"] for row in rows if word in row["document"]} == {0, 1}


def test_a_headline_is_in_its_report():
    for row in texts.rows("news", 100):
        words = re.findall(r"\w+", row["title"])
        assert len(words) >= 4 and all(word in row["document"] for word in words)


def test_korean_endings():
    assert [texts.with_subject(word) for word in ("책", "편지")] == ["책이", "편지가"]
    assert [texts.with_topic(word) for word in ("시청", "연구소")] == ["시청은", "연구소는"]
    assert [texts.with_object(word) for word in ("그림", "지도")] == ["그림을", "지도를"]
    assert [texts.with_closing_n(word) for word in ("사", "보여주", "던지")] == ["산", "보여준", "던진"]


@pytest.mark.parametrize("kind", models.BUILD)
def test_a_directory_is_what_the_library_saves_and_loads(kind, directories):
    names = {path.name for path in directories[kind].iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    config = json.loads((directories[kind] / "config.json").read_text())
    model, tokenizer = AutoModel.from_pretrained(directories[kind]), AutoTokenizer.from_pretrained(directories[kind])
    assert config["model_type"] == model.config.model_type == {"gpt": "gpt2"}.get(kind, kind)
    assert model.get_input_embeddings().num_embeddings == len(tokenizer)


def test_a_model_is_made_once(volume, directories, monkeypatch):
    monkeypatch.setattr(models, "make", lambda *_: pytest.fail("it is there"))
    assert models.directory_of("t5", volume, 0) == directories["t5"]


def test_pre_training_taught_something(volume, directories, tokenizers):
    """The same text surprises the trained model less than the one whose weights were only drawn."""
    from transformers import AutoModelForCausalLM

    text = tokenizers["gpt"](texts.rows("news", 5)[0]["document"], return_tensors="pt")["input_ids"]
    losses = [
        AutoModelForCausalLM.from_pretrained(directory)(input_ids=text, labels=text).loss.item()
        for directory in (models.directory_of("gpt", volume, 0), directories["gpt"])
    ]
    assert losses[1] < losses[0] - 1


@pytest.mark.parametrize("kind", tokens.KINDS)
def test_what_a_tokenizer_has_seen_comes_back(kind, tokenizers):
    for row in texts.rows("news", 20):
        cut = tokens.cut(tokenizers[kind], row["document"])
        assert cut.back.replace(" ", "") == row["document"].replace(" ", "") and len(cut.pieces) > 5


def test_only_bytes_can_write_everything(tokenizers):
    strange = "쀍 Ω 😀"
    cuts = {kind: tokens.cut(tokenizer, strange) for kind, tokenizer in tokenizers.items()}
    assert {kind for kind, cut in cuts.items() if cut.back == strange} == {"gpt"}
    assert "[UNK]" in cuts["bert"].pieces and "<unk>" in cuts["t5"].pieces
    assert all(re.fullmatch(r"(<[0-9A-F]{2}>)+|\s", piece) for piece in cuts["gpt"].pieces)
    written = re.findall(r"<([0-9A-F]{2})>", "".join(cuts["gpt"].pieces))
    assert bytes.fromhex("".join(written)) == strange.replace(" ", "").encode()


def test_no_hangul_is_taken_apart(tokenizers):
    ids = tokenizers["bert"]("재미있었다", add_special_tokens=False)["input_ids"]
    assert torch.tensor(ids).ne(tokenizers["bert"].unk_token_id).all()
    assert all(
        "가" <= letter <= "힣" or letter == "#" for letter in "".join(tokenizers["bert"].convert_ids_to_tokens(ids))
    )


def test_the_table_has_a_row_for_each_sentence(volume):
    loaded, said = tokens.load("made", volume)
    table = tokens.table(loaded, tokens.SENTENCES)
    assert table.row_count == len(tokens.SENTENCES) and len(table.columns) == 4
    assert len(said) == 3 and all("made locally" in line for line in said)


def test_three_kinds_cannot_be_one_name(volume):
    with pytest.raises(ValueError, match=r"'beomi/kcbert-base'; expected auto or made"):
        tokens.load("beomi/kcbert-base", volume)
