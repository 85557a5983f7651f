"""Tokens, bins and statistics."""

import numpy as np
import pytest

from services.openvla.checkpoint.config import SPACE_TOKEN
from services.openvla.checkpoint.tokenizer import PromptTokenizer, complete
from services.openvla.decoding.actions import ActionCodec, ActionTable, normalise, unnormalise
from vla_modelkit.checkpoint import CheckpointError

CODEC = ActionCodec()
STATS = {"q01": (-0.5,) * 6 + (0.0,), "q99": (0.5,) * 6 + (1.0,), "mask": (True,) * 6 + (False,)}


def test_every_bin_comes_back_as_its_own_token():
    tokens = np.arange(31745, 32000)
    np.testing.assert_array_equal(CODEC.tokens(CODEC.values(tokens)), tokens)
    assert CODEC.values(np.array([31744])) == CODEC.values(np.array([31745]))  # 256 ids, 255 intervals


def test_values_are_symmetric_and_highest_id_is_lowest_value():
    values = CODEC.values(np.arange(31745, 32000))
    assert (np.diff(values) < 0).all()
    np.testing.assert_allclose(values, -values[::-1], atol=1e-12)


@pytest.mark.parametrize(("token", "end"), [(0, 1), (31743, 1), (32000, -1), (32063, -1)])
def test_ids_that_are_not_an_actions_mean_an_end_of_the_range(token, end):
    assert not CODEC.is_action(np.array(token))
    assert CODEC.values(np.array(token)) == pytest.approx(end, abs=0.004)


def test_unnormalise_stretches_what_the_mask_names_and_leaves_the_rest():
    values = np.array([-1.0, 0.0, 1.0, 0.5, -0.5, 0.0, 0.7])
    np.testing.assert_allclose(unnormalise(values, STATS), [-0.5, 0.0, 0.5, 0.25, -0.25, 0.0, 0.7])
    np.testing.assert_allclose(normalise(unnormalise(values, STATS), STATS), values)


def test_the_table_gives_what_the_formulas_give_for_every_token():
    table = ActionTable(CODEC, STATS)
    for token in (0, *range(31742, 32002), 32063):
        looked_up, computed = table.action([token] * 7), unnormalise(CODEC.values(np.full(7, token)), STATS)
        assert looked_up.dtype == np.float32
        np.testing.assert_array_equal(looked_up, computed.astype(np.float32))
    mixed = [31745, 31800, 31999, 0, 31900, 32063, 31750]
    np.testing.assert_array_equal(
        table.action(mixed), unnormalise(CODEC.values(np.array(mixed)), STATS).astype(np.float32)
    )


def test_a_prompt_begins_with_bos_and_ends_with_the_space_token(checkpoints):
    tokenizer = PromptTokenizer(checkpoints())
    for text in ("put the bowl on the stove", "Öffne!", ""):
        ids = tokenizer.prompt_ids(text)
        assert ids[0] == 1
        assert ids[-1] == SPACE_TOKEN
        assert ids.count(1) == 1
    assert complete([5, SPACE_TOKEN]) == [1, 5, SPACE_TOKEN]
    assert tokenizer.prompt_ids("Open The DRAWER") == tokenizer.prompt_ids("open the drawer")


def test_a_directory_without_tokenizer_reports_it(tmp_path):
    with pytest.raises(CheckpointError, match="no tokenizer.json"):
        PromptTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="cannot be read"):
        PromptTokenizer(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model"])
def test_a_tokenizer_that_is_a_pointer_reports_it(tmp_path, name):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:b\nsize 499723\n")
    with pytest.raises(CheckpointError, match=rf"{name} cannot be read: .*git lfs pull"):
        PromptTokenizer(tmp_path)
