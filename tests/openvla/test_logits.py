"""Logits that are no numbers: that row fails alone, in words, and nothing of it is left for later rows."""

import urllib.request

import numpy as np
import pytest
import torch

from services.openvla.decoding.actions import codec_of
from services.openvla.decoding.engine import choose
from services.openvla.decoding.speculative import NO_TOKEN
from services.openvla.service.loading import load_policy
from services.openvla.service.policy import NonFiniteLogits
from services.openvla.service.settings import ModelSettings
from tests.running import running
from vla_contract import Observation, PolicyClient, PolicyUnavailable
from vla_modelkit.checkpoint import CheckpointError

KEY = "libero_goal_no_noops"
PROMPT, POISON = [1, 512, 513, 514], 777  # POISON is a token whose embedding a test makes NaN


@pytest.fixture
def engine(engines):
    """The tiny engine, its weights and cache as they were once the test is over."""
    engine = engines()
    kept = engine.model.llama.embed.clone()
    yield engine
    engine.model.llama.embed.copy_(kept)
    engine._cache.clear()


def pixels(count):
    return np.random.RandomState(3).randint(0, 256, (count, 64, 64, 3)).astype(np.uint8)


def test_the_best_score_has_to_be_a_number():
    nan, inf = float("nan"), float("inf")
    logits = torch.tensor([[1.0, 3.0, 2.0], [nan, 9.0, 0.0], [0.0, inf, 1.0], [-inf, 1.0, 0.0], [-inf, -inf, -inf]])
    assert choose(logits).tolist() == [1, NO_TOKEN, NO_TOKEN, 1, NO_TOKEN]


@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("fixed_shapes", [False, True])
def test_a_row_without_scores_fails_alone_and_leaves_nothing(drafted, fixed_shapes, engine):
    shown, prompts = pixels(3), [PROMPT, [*PROMPT, 515, 516], PROMPT]
    good = engine.generate(shown, prompts).tokens
    draft = np.stack([np.stack([row, row, row]) for row in good]) if drafted else None
    engine.model.llama.embed[POISON] = float("nan")
    engine.fixed_shapes = fixed_shapes
    try:
        for _ in range(2):
            made = engine.generate(shown, [PROMPT, [*PROMPT, POISON, 516], PROMPT], draft).tokens
            assert (made[1] == NO_TOKEN).all()
            np.testing.assert_array_equal(made[[0, 2]], good[[0, 2]])
            np.testing.assert_array_equal(engine.generate(shown, prompts, draft).tokens, good)
    finally:
        engine.fixed_shapes = False


@pytest.mark.parametrize("place", range(1, 7))
def test_it_fails_wherever_in_the_action_that_happens(place, engine):
    shown = pixels(1)
    good = engine.generate(shown, [PROMPT]).tokens
    token = int(good[0, place - 1])
    engine.model.llama.embed[token] = float("nan")
    first = int(np.flatnonzero(good[0] == token)[0])
    made = engine.generate(shown, [PROMPT]).tokens[0]
    assert made.tolist() == [*good[0, : first + 1], *[NO_TOKEN] * (6 - first)]
    drafted = engine.generate(shown, [PROMPT], np.stack([good[0]] * 3)[None]).tokens[0]  # read with the prompt
    assert NO_TOKEN in drafted and all(one in (NO_TOKEN, right) for one, right in zip(drafted, good[0], strict=True))


def test_a_wrong_draft_without_scores_spoils_no_later_request(engine):
    """Its keys and values stay in slots that nobody sees, where 0 · NaN would still be NaN."""
    shown = pixels(2)
    good = engine.generate(shown, [PROMPT] * 2).tokens
    engine.model.llama.embed[31999] = float("nan")
    assert not (good == 31999).any()
    draft = np.full((2, 3, 7), 31999)
    for _ in range(2):
        made = engine.generate(shown, [PROMPT] * 2, draft).tokens
        assert ((made == good) | (made == NO_TOKEN)).all()
        np.testing.assert_array_equal(engine.generate(shown, [PROMPT] * 2).tokens, good)


def test_over_http_it_is_an_error_and_counted(checkpoints):
    policy = load_policy(ModelSettings(checkpoint=str(checkpoints()), device="cpu", max_batch=2))
    tokens = policy._prompt_ids("open the drawer")
    odd = next(one for one in policy._prompt_ids("put the cup away") if one not in tokens)
    with running(policy) as served, PolicyClient(served.url, retries=0) as client:
        before = client.act(seen("open the drawer")).actions
        policy._engine.model.llama.embed[odd] = float("nan")
        with pytest.raises(PolicyUnavailable, match="NonFiniteLogits"):
            client.act(seen("put the cup away"))
        np.testing.assert_array_equal(client.act(seen("open the drawer")).actions, before)
        page = urllib.request.urlopen(f"{served.url}/metrics").read().decode()
    assert 'vla_policy_events_total{event="scores_not_finite"} 1.0' in page
    assert 'vla_policy_events_total{event="tokens_outside_the_action_range"} 0.0' in page


def test_a_token_that_is_not_an_actions_is_counted(checkpoints):
    policy = load_policy(ModelSettings(checkpoint=str(checkpoints()), device="cpu", drafts=False))
    outside = codec_of(policy._config).vocab_size + 5
    answer = policy._answer(np.array([outside, 31999, 31999, 5, 31999, 31999, 31999]), "s", KEY, {})
    assert np.isfinite(answer.actions).all() and policy.counters()["tokens_outside_the_action_range"] == 2
    assert isinstance(policy._answer(np.full(7, NO_TOKEN), "s", KEY, {}), NonFiniteLogits)


def test_damaged_weights_do_not_start(checkpoints, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    directory = shutil.copytree(checkpoints(), tmp_path / "damaged")
    shard = next(
        path for path in directory.glob("*.safetensors") if "language_model.model.norm.weight" in load_file(path)
    )
    state = load_file(shard)
    state["language_model.model.norm.weight"][0] = float("nan")
    save_file(state, shard, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="NaN or infinite"):
        load_policy(ModelSettings(checkpoint=str(directory), device="cpu"))


def seen(instruction):
    image = np.random.RandomState(0).randint(0, 256, (64, 64, 3)).astype(np.uint8)
    return Observation({"agentview": image}, None, instruction, "s", 0, unnorm_key=KEY)
