"""The files beside the weights: pixels as upstream's processor reads them, statistics one by one, plain Llama only."""

import json
import logging
import shutil

import numpy as np
import pytest

from services.openvla.checkpoint.config import PREPROCESSOR as FILE
from services.openvla.checkpoint.config import RESAMPLINGS, load_config, read_preprocessing
from services.openvla.checkpoint.oft import Oft
from services.openvla.checkpoint.statistics import FILE as STATISTICS
from services.openvla.checkpoint.tokenizer import PromptTokenizer
from services.openvla.decoding.actions import codec_of, unnormalise
from services.openvla.service.loading import served_keys
from vla_modelkit.checkpoint import CheckpointError

NORMALIZE = "tvf_normalize_params"


@pytest.fixture
def directory(checkpoints, tmp_path):
    """A copy of the tiny checkpoint's small files that a test may change."""
    return shutil.copytree(checkpoints(), tmp_path / "changed", ignore=shutil.ignore_patterns("*.safetensors"))


def edit(path, **changes):
    """Sets values of a JSON file; `...` takes one out."""
    value = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: one for name, one in value.items() if one is not ...}))


def test_what_upstream_let_override_overrides(directory):
    """means and stds are the numbers before the converter rounded them; the model sees the fields'."""
    seen = read_preprocessing(directory)
    assert seen[0]["mean"] == (0.484375, 0.455078125, 0.40625) and seen[0]["std"] == (
        0.228515625,
        0.2236328125,
        0.224609375,
    )
    edit(directory / FILE, **{NORMALIZE: ...})
    assert read_preprocessing(directory)[0]["mean"] == (0.485, 0.456, 0.406)
    edit(directory / FILE, **{NORMALIZE: [{"mean": [0.1, 0.2, 0.3]}, {"std": [1, 2, 3]}]})
    seen = read_preprocessing(directory)
    assert (
        seen[0]["mean"] == (0.1, 0.2, 0.3)
        and seen[0]["std"] == (0.229, 0.224, 0.225)
        and seen[1]["std"] == (1.0, 2.0, 3.0)
    )


@pytest.mark.parametrize("number", range(len(RESAMPLINGS)))
def test_filters_are_read_by_pillows_number_and_by_name(number, directory):
    from PIL import Image

    size = {"size": [64, 64]}
    edit(directory / FILE, tvf_resize_params=[{**size, "interpolation": number}] * 2)
    assert Image.Resampling[read_preprocessing(directory)[0]["interpolation"].upper()] == number
    edit(directory / FILE, tvf_resize_params=[size] * 2, interpolations=[RESAMPLINGS[number]] * 2)
    assert Image.Resampling[read_preprocessing(directory)[1]["interpolation"].upper()] == number


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"image_resize_strategy": ...}, "letterbox"),
        ({"tvf_do_letterbox": True}, "tvf_do_letterbox"),
        ({"tvf_resize_params": [{"size": [64, 64], "interpolation": way} for way in (2, 3)]}, "bilinear.*bicubic"),
        ({"interpolations": ["bicubic", "lanczos"], "tvf_resize_params": ...}, "bicubic.*lanczos"),
        ({"interpolations": ["random"] * 2, "tvf_resize_params": ...}, "random"),
        ({"tvf_resize_params": [{"size": [80, 80]}] * 2}, "resized to 80"),
        ({"tvf_resize_params": [{"size": 64}] * 2}, "a square"),
        ({"tvf_resize_params": [{"size": [64, 64], "max_size": 64}] * 2}, "max_size"),
        ({"tvf_crop_params": [{"output_size": [32, 32]}] * 2}, "cropped to 32"),
        ({"tvf_crop_params": []}, "two objects"),
        ({NORMALIZE: [{"mean": [0.5, 0.5]}] * 2}, "three numbers"),
        ({NORMALIZE: [{"std": [0.5, 0.0, 0.5]}] * 2}, "other than 0"),
        ({NORMALIZE: [{"mean": [0.5, None, 0.5]}] * 2}, "three numbers"),
        ({"means": None}, "means"),
        ({"input_sizes": [[3, 224, 224]] * 2, "tvf_resize_params": ..., "tvf_crop_params": ...}, "size"),
    ],
)
def test_another_way_to_see_is_refused(changes, text, directory):
    edit(directory / FILE, **changes)
    with pytest.raises(CheckpointError, match=text):
        load_config(directory)


@pytest.mark.parametrize(
    "changed", [{"hidden_act": "gelu"}, {"tie_word_embeddings": True}, {"mlp_bias": True}, {"pretraining_tp": 2}]
)
def test_a_language_model_that_computes_otherwise_is_refused(changed, directory):
    text = json.loads((directory / "config.json").read_text())["text_config"]
    edit(directory / "config.json", text_config={**text, **changed})
    with pytest.raises(CheckpointError, match=next(iter(changed))):
        load_config(directory)


GOOD = {"q01": [-1.0] * 7, "q99": [1.0] * 7, "mask": [True] * 6 + [False]}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"q01": [0.0] * 3 + [float("nan")] + [0.0] * 3}, "'b' have nan as q01 of dimension 3"),
        ({"q99": [1.0] * 6 + ["1"]}, "'b' have '1' as q99 of dimension 6"),
        ({"q99": [1.0] * 6 + [None]}, "'b' have None as q99 of dimension 6"),
        ({"q99": [1.0] * 6}, "'b' are for 6 numbers in q99"),
        ({"mask": [True] * 6}, "'b' have the mask"),
        ({"mask": "yes"}, "'b' have the mask"),
    ],
)
def test_one_bad_data_set_is_named_and_blocks_no_other(changes, text, directory, caplog):
    bad = {"a": {"action": GOOD}, "b": {"action": {**GOOD, **changes}}, "c": {"action": GOOD}, "d": None}
    (directory / STATISTICS).write_text(json.dumps(bad))
    config = load_config(directory)
    with caplog.at_level(logging.WARNING):
        assert served_keys(config, "") == ("a", "c")
    assert text in caplog.text and "'d'" in caplog.text
    with pytest.raises(ValueError, match=text.replace("[", r"\[")):
        served_keys(config, "b")
    (directory / STATISTICS).write_text(json.dumps({"b": bad["b"]}))
    with pytest.raises(CheckpointError, match=text):
        load_config(directory)


def test_no_mask_stretches_everything_and_a_null_mask_nothing_as_upstream_does(directory):
    kinds = {"absent": {**GOOD, "q99": [3.0] * 7}, "null": {**GOOD, "q99": [3.0] * 7, "mask": None}}
    del kinds["absent"]["mask"]
    (directory / STATISTICS).write_text(json.dumps({key: {"action": value} for key, value in kinds.items()}))
    stats = load_config(directory).norm_stats
    values = codec_of(load_config(directory)).values(np.full(7, 31800))
    np.testing.assert_array_equal(unnormalise(values, stats["null"]), values)  # np.where(None, …) takes the second
    np.testing.assert_array_equal(unnormalise(values, stats["absent"]), 0.5 * (values + 1) * 4.0 - 1.0)


def test_tokenizer_model_alone_reads_special_tokens_as_upstream_does(tmp_path):
    import sentencepiece
    from transformers import LlamaTokenizerFast

    (tmp_path / "text").write_text("\n".join(f"put the bowl on the stove {i} In: Out: What action" for i in range(99)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "tokenizer"), vocab_size=300, byte_fallback=True,
        model_type="bpe", normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
    )  # fmt: skip
    upstream, ours = LlamaTokenizerFast.from_pretrained(str(tmp_path)), PromptTokenizer(tmp_path)
    for text in ("put </s> the <s>bowl<unk>", "put  the bowl ", "die weiße Tasse\n", "<s>", ""):
        prompt = f"In: What action should the robot take to {text.lower()}?\nOut:"
        assert ours.prompt_ids(text)[:-1] == upstream(prompt)["input_ids"]
    assert 2 in ours.prompt_ids("put </s> it")


def test_openvla_oft_is_detected_by_its_statistics(directory):
    """OpenVLA's own statistics have a state of nothing but zeros."""
    zeros = {name: [0.0] * 7 for name in ("mean", "std", "max", "min", "q01", "q99")}
    (directory / STATISTICS).write_text(json.dumps({"libero_goal": {"action": GOOD, "proprio": zeros}}))
    assert list(load_config(directory).norm_stats) == ["libero_goal"] and load_config(directory).oft is None
    state = {**zeros, "mean": [-0.05, 0.03, 0.76, 2.97, -0.22, -0.12, 0.02, -0.02]}
    (directory / STATISTICS).write_text(json.dumps({"libero_goal_no_noops": {"action": GOOD, "proprio": state}}))
    assert load_config(directory).oft == Oft(False, False)
