"""Corpora, tokenizers and batches: nothing lost, nothing leaked, and bad input named."""

import json
import os
import zipfile

import datasets
import pytest
import torch

from services.ws_mdl import corpora
from services.ws_mdl.corpora import homeassistant
from services.ws_mdl.corpora.corpus import Languages, clean, lemon_mint_pairs, opus_books_pairs
from services.ws_mdl.corpora.files import read_lines
from services.ws_mdl.practice.series import from_file
from services.ws_mdl.transformer import dataset as data
from services.ws_mdl.transformer.config import get_config
from services.ws_mdl.transformer.model import build_transformer
from services.ws_mdl.transformer.tokenization import (
    SPECIAL,
    UNKNOWN,
    detokenize,
    get_or_build_tokenizer,
    load_tokenizer,
    train_tokenizer,
)
from vla_common.volume import Volume

SENTENCES = [
    "Turn on {name} now.",
    "Turn off the light (all of it).",
    "Turn on the light, then wait.",
    "{name}: it is on",
]
KINDS = pytest.mark.parametrize("kind", ["word", "bpe"])


# --- corpora ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*corpora.NAMED, "some.tsv"])
def test_an_unknown_pair_is_named_with_the_known_ones(name, volume):
    known = "en-it|en-ko|forward-backward" if name in corpora.NAMED else "not found"
    with pytest.raises(ValueError, match=known):
        corpora.load(name, "en-fr", volume)


@pytest.mark.parametrize("pair", ["english", "en-", "en-en"])
def test_a_pair_is_two_languages(pair, volume):
    with pytest.raises(ValueError, match=f"{pair!r}; expected source and target"):
        corpora.load("default", pair, volume)


def test_an_unknown_corpus_is_named_with_the_known_ones(volume):
    with pytest.raises(ValueError, match="'opus_book' not found; known: default, opus_books"):
        corpora.load("opus_book", None, volume)


def test_files_of_both_kinds_give_their_pairs(volume):
    tsv, jsonl, nested = (volume.datasets / name for name in ("a.tsv", "a.jsonl", "b.jsonl"))
    pairs = [("one  two", "uno due"), ("three", "tre"), ("three", "tre"), ("", "niente")]
    rows = [{"it": it, "en": en} for en, it in pairs]
    tsv.write_text("en\tit\n" + "".join(f"{en}\t{it}\n" for en, it in pairs))
    jsonl.write_text("\n".join(map(json.dumps, rows)))
    nested.write_text("\n".join(json.dumps({"id": 1, "translation": row}) for row in rows))
    for path in (tsv, jsonl, nested):
        assert corpora.load(str(path), "en-it", volume).pairs == [("one two", "uno due"), ("three", "tre")]
    assert corpora.load("a.tsv", "en-it", volume).pairs[1] == ("three", "tre"), (
        "a name alone is looked up on the volume"
    )
    assert corpora.load("a.jsonl", "it-en", volume).pairs[1] == ("tre", "three")


@pytest.mark.parametrize("header", ["en\tit", "English\tItalian", "source\ttarget", "EN\tIT", "en\tko"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_header_and_a_byte_order_mark_are_not_a_words(volume, capsys, header, mark):
    (volume.datasets / "a.tsv").write_text(f"{mark}{header}\nthe cat\til gatto\n")
    assert corpora.load("a.tsv", "en-it", volume).pairs == [("the cat", "il gatto")]
    assert "line 1 names the columns" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl"])
def test_a_byte_order_mark_is_not_learned(volume, capsys, name):
    text = {"a.tsv": "the cat\til gatto\n", "a.jsonl": '{"en": "the cat", "it": "il gatto"}\n'}[name]
    (volume.datasets / name).write_text(text, encoding="utf-8-sig")
    assert corpora.load(name, "en-it", volume).pairs == [("the cat", "il gatto")] and not capsys.readouterr().out
    (volume.datasets / "lines.txt").write_text("one\ntwo\n", encoding="utf-8-sig")
    assert read_lines(volume.datasets / "lines.txt") == ["one", "two", ""]
    (volume.datasets / "numbers.csv").write_text("1\n2.5\n", encoding="utf-8-sig")
    assert from_file(volume.datasets / "numbers.csv").tolist() == [1.0, 2.5]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "it\ten\nuno\tone\n", "line 1 names the columns it and en; expected en-it: --pair it-en"),
        ("a.tsv", "one\tuno\ntwo due\n", "line 2: 1 columns; expected source, one tab, target"),
        ("a.tsv", "\n\n", "no sentence pairs"),
        ("a.jsonl", '{"en": "one", "fr": "un"}', "line 1 has en, fr; expected texts under en and it"),
        ("a.jsonl", "[1, 2]", "line 1 has list; expected"),
        ("a.jsonl", "{", "line 1 .* JSON"),
    ],
)
def test_a_bad_file_is_named_with_its_line(volume, name, text, message):
    (volume.datasets / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        corpora.load(name, "en-it", volume)


def test_a_file_beyond_the_limit_is_not_read(volume):
    (volume.datasets / "a.tsv").touch()
    os.truncate(volume.datasets / "a.tsv", 2**30 + 1)
    with pytest.raises(ValueError, match="1,073,741,825 bytes; expected at most 1,073,741,824"):
        corpora.load("a.tsv", "en-it", volume)


def test_a_file_that_is_not_text_is_named(volume):
    (volume.datasets / "a.tsv").write_bytes(b"one\t\xff\xfe")
    with pytest.raises(ValueError, match="not UTF-8"):
        corpora.load("a.tsv", "en-it", volume)


def test_rows_of_the_hub_become_pairs_in_either_direction():
    opus = datasets.Dataset.from_list([{"id": "1", "translation": {"en": "one", "it": "uno"}}])
    assert opus_books_pairs(opus, Languages("it", "en")) == [("uno", "one")]
    lemon = datasets.Dataset.from_list([{"english": "one", "korean": "하나"}])
    assert lemon_mint_pairs(lemon, Languages("en", "ko")) == [("one", "하나")]


def test_translations_are_paired_by_key_with_their_placeholders(tmp_path):
    files = {
        "en": {
            "title": "Only",
            "step": {"a": "Turn on {name}", "b": "Two words", "c": "Not translated", "d": "Lost {x}"},
        },
        "ko": {"title": "뿐", "step": {"a": "{name} 켜기", "b": "두 단어", "c": "Not translated", "d": "잃음"}},
    }
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as wheel:
        for language, texts in files.items():
            wheel.writestr(f"homeassistant/components/lamp/translations/{language}.json", json.dumps(texts))
        wheel.writestr("homeassistant/components/lamp/translations/de.json", json.dumps({"title": "Nur"}))
    texts = homeassistant.read_texts(zipfile.ZipFile(tmp_path / "w.whl"))
    assert homeassistant.aligned(texts, "en", "ko") == [("Turn on {name}", "{name} 켜기"), ("Two words", "두 단어")]


@pytest.fixture(scope="module")
def default_volume() -> Volume:
    """The volume of this machine with the default corpus on it; skips where it cannot be had."""
    volume = Volume()
    try:
        corpora.load("default", None, volume)
    except (ValueError, OSError) as error:
        pytest.skip(f"the default corpus is not here and cannot be downloaded: {str(error).splitlines()[0]}")
    return volume


@pytest.mark.outside
@pytest.mark.parametrize("pair", homeassistant.PAIRS)
def test_the_default_corpus_is_real_clean_and_about_ten_thousand_pairs(default_volume, pair):
    corpus = corpora.load("default", pair, default_volume)
    assert 9_000 < len(corpus.pairs) < 11_000 and clean(corpus.pairs) == corpus.pairs
    assert (
        "Apache-2.0" in corpus.licence and (default_volume.datasets / homeassistant.DIRECTORY / "LICENSE.md").is_file()
    )
    source, target = pair.split("-")
    turned = corpora.load("default", f"{target}-{source}", default_volume)
    assert turned.pairs == [(b, a) for a, b in corpus.pairs]


@pytest.mark.outside
def test_a_damaged_copy_of_the_default_corpus_is_not_used(default_volume, volume, monkeypatch):
    directory = volume.datasets / homeassistant.DIRECTORY
    directory.mkdir()
    (directory / "en-it.tsv").write_text("one\tuno\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ValueError, match=r"could not be downloaded(?s:.*)--corpus FILE.tsv"):
        corpora.load("default", "en-it", volume)


def test_no_source_sentence_is_in_both_parts():
    pairs = [(f"s{i // 3}", f"t{i}") for i in range(300)]
    train, val = data.split_pairs(pairs, 0.1)
    assert sorted(train + val) == sorted(pairs) and 25 <= len(val) <= 35
    assert not {source for source, _ in train} & {source for source, _ in val}
    assert data.split_pairs(pairs, 0.1) == (train, val)


def test_one_sentence_cannot_be_split():
    with pytest.raises(ValueError, match="1 different source sentences; expected at least 2"):
        data.split_pairs([("a", "b"), ("a", "c")], 0.1)


# --- tokenizers ---------------------------------------------------------------------------------------------


@KINDS
def test_tokenizers_keep_placeholders_whole_and_know_four_special_tokens(kind):
    tokenizer = train_tokenizer(SENTENCES * 3, kind, 2, 200)
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == [0, 1, 2, 3]
    assert any("{name}" in token for token in tokenizer.encode("Turn on {name} now.").tokens)
    for sentence in SENTENCES:
        assert detokenize(tokenizer, tokenizer.encode(sentence).ids) == sentence


def test_rare_words_are_unknown():
    tokenizer = train_tokenizer([*SENTENCES, "zebra"], "word", 2, 0)
    assert tokenizer.encode("zebra").tokens == ["[UNK]"]
    assert detokenize(tokenizer, tokenizer.encode("zebra light").ids) == f"{UNKNOWN} light"


@KINDS
def test_a_tokenizer_is_built_once_and_stored(tmp_path, kind):
    path = tmp_path / "tokenizer_en.json"
    built = get_or_build_tokenizer(path, iter(SENTENCES), kind, 1)
    again = get_or_build_tokenizer(path, iter(["other words"]), kind, 1)
    assert again.get_vocab() == built.get_vocab()
    other = {"word": "bpe", "bpe": "word"}[kind]
    with pytest.raises(ValueError, match=f"{kind} tokenizer.*{other}.*--name"):
        get_or_build_tokenizer(path, iter(SENTENCES), other, 1)


def test_a_damaged_tokenizer_is_named(tmp_path):
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(ValueError, match=r"t\.json is not a tokenizer"):
        load_tokenizer(tmp_path / "t.json")


# --- batches ------------------------------------------------------------------------------------------------


@pytest.fixture
def tokenizer():
    return train_tokenizer(["a b c d e f g h"], "word", 1, 0)


def pairs_of(*lengths: tuple[int, int]) -> list[tuple[str, str]]:
    letters = "abcdefgh" * 20
    return [(" ".join(letters[:src]), " ".join(letters[:tgt])) for src, tgt in lengths]


def test_a_batch_holds_what_encoder_decoder_and_loss_need(tokenizer):
    special = data.Special.of(tokenizer)
    dataset = data.PairDataset(pairs_of((2, 1), (1, 3)), tokenizer, tokenizer, seq=10)
    batch = data.make_batch(list(dataset), special, special)
    a, b, c = tokenizer.encode("a b c").ids
    pad, sos, eos = special
    assert batch.encoder_input.tolist() == [[sos, a, b, eos], [sos, a, eos, pad]]
    assert batch.decoder_input.tolist() == [[sos, a, pad, pad], [sos, a, b, c]]
    assert batch.label.tolist() == [[a, eos, pad, pad], [a, b, c, eos]]
    assert batch.encoder_mask[:, 0, 0].tolist() == [[True] * 4, [True, True, True, False]]
    assert batch.label.flatten()[batch.real].tolist() == [a, eos, a, b, c, eos]
    assert all(mask.dtype == torch.bool for mask in (batch.encoder_mask, batch.decoder_mask))
    assert [(len(src) + 2, len(tgt) + 1) for src, tgt in dataset] == dataset.lengths()


def test_too_long_sentences_are_counted_and_skipped_or_cut(tokenizer):
    pairs = pairs_of((3, 3), (8, 3), (9, 3), (3, 9), (3, 10))  # seq 10 has room for 8 and 9 words
    skip = data.PairDataset(pairs, tokenizer, tokenizer, 10, "skip")
    cut = data.PairDataset(pairs, tokenizer, tokenizer, 10, "cut")
    assert (len(skip), skip.skipped, skip.cut) == (3, 2, 0)
    assert (len(cut), cut.skipped, cut.cut) == (5, 0, 2)
    assert all(src <= 10 and tgt <= 10 for src, tgt in skip.lengths() + cut.lengths())
    with pytest.raises(ValueError, match="5 sentence pairs .* seq = 4.*--set seq"):
        data.PairDataset(pairs_of(*[(8, 8)] * 5), tokenizer, tokenizer, 4)


LENGTHS = [(3 + i % 17, 2 + (i * 7) % 23) for i in range(1000)]


@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_has_each_example_once_in_batches_that_fit(shuffle):
    sampler = data.BucketSampler([*LENGTHS, (400, 3)], 256, shuffle=shuffle)
    batches = list(sampler)
    assert sorted(index for batch in batches for index in batch) == list(range(1001))
    for batch in batches:
        longest = max(max((*LENGTHS, (400, 3))[index]) for index in batch)
        assert longest * len(batch) <= 256 or len(batch) == 1
    real = sum(tgt for _, tgt in LENGTHS)
    padded = sum(len(batch) * max((*LENGTHS, (0, 0))[index][1] for index in batch) for batch in batches)
    assert padded < 1.15 * real, "sentences of like length share a batch"


def test_order_depends_on_seed_and_epoch_only_and_can_begin_in_the_middle():
    def order(seed: int, epoch: int, done: int = 0) -> list[list[int]]:
        sampler = data.BucketSampler(LENGTHS, 256, shuffle=True, seed=seed)
        sampler.set_position(epoch, done)
        return list(sampler)

    assert order(1, 4) == order(1, 4) and order(1, 4)[7:] == order(1, 4, done=7)
    assert order(1, 4) != order(1, 5) and order(1, 4) != order(2, 4)


def test_processes_share_an_epoch_without_overlap():
    parts = [list(data.BucketSampler(LENGTHS, 256, shuffle=True, rank=rank, world=3)) for rank in range(3)]
    assert len({len(part) for part in parts}) == 1
    seen = [index for part in parts for batch in part for index in batch]
    assert len(seen) == len(set(seen)) and len(seen) > 0.9 * len(LENGTHS)


# --- cells that students paste ------------------------------------------------------------------------------


def test_a_pasted_training_cell_runs(tokenizer):
    config = get_config()
    assert (config["batch_size"], config["seq_len"], config["num_epochs"]) == (8, 350, 20)
    assert (config["lr"], config["lang_src"], config["lang_tgt"], config["datasource"]) == (1e-4, "en", "it", "default")
    config["seq_len"], config["lang_tgt"], config["preload"] = 12, "fr", None
    assert (config.seq, config.pair, config.preload) == (12, "en-fr", "none")

    rows = [{"translation": dict(zip(("en", "fr"), pair, strict=True))} for pair in pairs_of((2, 1), (1, 3))]
    dataset = data.TranslationDataset(
        rows, tokenizer, tokenizer, config["lang_src"], config["lang_tgt"], config["seq_len"]
    )
    assert data.BilingualDataset is data.TranslationDataset
    batch = next(iter(torch.utils.data.DataLoader(dataset, batch_size=config["batch_size"])))
    assert batch["src_text"] == ["a b", "a"]
    model = build_transformer(20, 20, config["seq_len"], config["seq_len"], d_model=16, N=1, h=2, d_ff=32)
    encoder_output = model.encode(batch["encoder_input"], batch["encoder_mask"])
    decoder_output = model.decode(encoder_output, batch["encoder_mask"], batch["decoder_input"], batch["decoder_mask"])
    scores = model.project(decoder_output)
    loss_fn = torch.nn.CrossEntropyLoss(ignore_index=tokenizer.token_to_id("[PAD]"), label_smoothing=0.1)
    loss = loss_fn(scores.view(-1, 20), batch["label"].view(-1))
    loss.backward()
    assert scores.shape == (2, 12, 20) and torch.isfinite(loss)


def test_an_example_of_the_courses_data_set_is_what_the_course_gives(tokenizer):
    pad, sos, eos = data.Special.of(tokenizer)
    a, b = tokenizer.encode("a b").ids
    example = data.BilingualDataset([{"translation": {"en": "a b", "it": "b"}}], tokenizer, tokenizer, "en", "it", 5)[0]
    assert example["encoder_input"].tolist() == [sos, a, b, eos, pad]
    assert example["decoder_input"].tolist() == [sos, b, pad, pad, pad]
    assert example["label"].tolist() == [b, eos, pad, pad, pad]
    assert example["encoder_mask"].tolist() == [[[True, True, True, True, False]]]
    assert example["decoder_mask"].int()[0].tolist() == [[1, 0, 0, 0, 0], *[[1, 1, 0, 0, 0]] * 4]


def test_a_setting_that_is_unknown_is_named_with_the_known_ones():
    with pytest.raises(KeyError, match="setting 'batchsize' not found; known: .*batch_size"):
        get_config()["batchsize"]
    with pytest.raises(ValueError, match="batch_size is 0; expected 1 or more"):
        get_config()["batch_size"] = 0
