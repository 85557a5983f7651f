"""Three tokenizers trained locally: BERT's WordPiece, GPT-2's byte-level BPE, T5's unigram.

They are small (a vocabulary of a thousand or so, from a few thousand sentences) and saved in the hub's files.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable

import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from transformers import BertTokenizer, GPT2Tokenizer, PreTrainedTokenizerBase, T5Tokenizer

SIZE = 1200  # maximum vocabulary
BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
GPT_SPECIAL = ("<pad>", "</s>")
T5_SPECIAL = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}  # T5's ids; it has no BOS token


def wordpiece(texts: Iterable[str], size: int = SIZE) -> PreTrainedTokenizerBase:
    """Train BERT's WordPiece: continuation pieces are marked ##; a word with an unknown letter is [UNK].

    Nothing is lowercased: BERT's lowercasing also strips accents, which decomposes Hangul.
    """
    learner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.normalizer = normalizers.BertNormalizer(lowercase=False)
    learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=[*BERT_SPECIAL], show_progress=False)
    learner.train_from_iterator(texts, trainer)
    return BertTokenizer(vocab=learner.get_vocab(), do_lower_case=False)


def byte_bpe(texts: Iterable[str], size: int = SIZE) -> PreTrainedTokenizerBase:
    """Train GPT-2's byte-level BPE: merges of UTF-8 bytes, lossless for any text."""
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*GPT_SPECIAL], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # all 256 bytes, including those that do not occur
    )  # fmt: skip
    learner.train_from_iterator(texts, trainer)
    merges = [tuple(merge) for merge in json.loads(learner.to_str())["model"]["merges"]]
    special = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"}
    return GPT2Tokenizer(vocab=learner.get_vocab(), merges=merges, **special)


def unigram(texts: Iterable[str], size: int = SIZE) -> PreTrainedTokenizerBase:
    """Train T5's SentencePiece unigram model: spaces are symbols (▁), and a text gets its most likely pieces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=size, model_type="unigram",
        hard_vocab_limit=False, character_coverage=1.0, minloglevel=2, num_threads=1, **T5_SPECIAL,
    )  # fmt: skip
    learned = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [(learned.id_to_piece(number), learned.get_score(number)) for number in range(learned.get_piece_size())]
    return T5Tokenizer(vocab=pieces, extra_ids=10)


KINDS = {"bert": wordpiece, "gpt": byte_bpe, "t5": unigram}
