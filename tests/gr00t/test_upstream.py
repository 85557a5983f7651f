"""With Isaac-GR00T's package: its policy on the CPU, against upstream's own loop and against our engine."""

import sys

import numpy as np
import pytest
import torch

from services.gr00t.checkpoint.embodiment import embodiment
from services.gr00t.model.attention import AttentionKernel
from tests.gr00t.harness import NAMES, observe
from tests.gr00t.upstream.attention import backbone
from tests.gr00t.upstream.noise import GivenNoise
from tests.gr00t.upstream.policy import to_actions
from vla_modelkit import noise

every = pytest.mark.parametrize("name", NAMES)
TOLERANCE = 0.02  # of a range of 0.2: bfloat16 sums in another order when a batch has another size
FIELDS = (
    "state_horizon", "action_horizon", "max_state_dim", "max_action_dim", "max_length", "formalize_language",
)  # fmt: skip
CONFIGS = {  # embodiment -> the name of upstream's own data configuration
    "oxe_droid": "oxe_droid", "gr1_arms_only": "fourier_gr1_arms_only", "gr1_arms_waist": "fourier_gr1_arms_waist",
    "gr1_full_upper_body": "fourier_gr1_full_upper_body", "agibot_genie1": "agibot_genie1", "so100": "so100",
    "so100_dualcam": "so100_dualcam", "unitree_g1": "unitree_g1", "unitree_g1_full_body": "unitree_g1_full_body",
}  # fmt: skip


def upstreams_answer(served, observation):
    """Returns what upstream's own `get_action` answers for the observation, with the noise that ours starts from."""
    head = served.policy.model.action_head
    seeds = [noise.seed_of(observation, served.settings.seed)]
    with GivenNoise(noise.draw(seeds, head.config.action_horizon, head.config.action_dim)):
        parts = served.policy.get_action(served.to_upstream(observation))
    return to_actions(served.layout, parts)[0]


@every
def test_actions_are_upstreams_bit_for_bit(upstream_policies, name):
    served = upstream_policies(name)
    observation = observe(served.layout, seed=1)
    chunk = served.act([observation])[0].actions
    assert chunk.shape == (16, served.layout.action_size) and chunk.dtype == np.float32
    assert np.array_equal(chunk, upstreams_answer(served, observation))


def test_in_bfloat16_our_engine_answers_nearly_the_same(upstream_policies, tiny_policies):
    theirs, ours = upstream_policies("libero"), tiny_policies("libero")
    observation = observe(ours.layout, seed=1)
    apart = np.abs(theirs.act([observation])[0].actions - ours.act([observation])[0].actions)
    assert np.median(apart) < 0.05  # of noise that spreads over ±0.2


def test_a_batch_of_different_prompts_answers_as_one_by_one(upstream_policies):
    served = upstream_policies("libero")
    texts = ("pick up the cup", "put the cup on the plate in the drawer", "open the box", "close the top drawer slowly")
    asked = [observe(served.layout, seed=k, instruction=text) for k, text in enumerate(texts)]
    together = served.act(asked)
    for observation, chunk in zip(asked, together, strict=True):
        assert np.allclose(chunk.actions, served.act([observation])[0].actions, atol=TOLERANCE)


def test_equally_long_prompts_share_one_pass(upstream_policies, monkeypatch):
    served = upstream_policies("libero")
    sizes = []
    real = type(served).infer
    monkeypatch.setattr(
        type(served), "infer", lambda self, inputs, seeds: sizes.append(len(seeds)) or real(self, inputs, seeds)
    )
    words = ("pick up the cup", "pick up the pan", "put it on the stove and leave")
    served.act([observe(served.layout, seed=k, instruction=text) for k, text in enumerate(words)])
    assert sorted(sizes) == [1, 2]


def test_one_bad_observation_fails_alone(upstream_policies):
    served = upstream_policies("libero")
    good, bad = observe(served.layout, seed=1), observe(served.layout, state=np.zeros(3, np.float32))
    results = served.act([bad, good])
    assert isinstance(results[0], ValueError)
    assert np.array_equal(results[1].actions, served.act([good])[0].actions)


def test_without_its_head_the_language_model_gives_the_same_features(upstream_policies):
    served = upstream_policies("libero")
    language = served.policy.model.backbone.eagle_model.language_model
    assert isinstance(language.lm_head, torch.nn.Identity)
    observation = observe(served.layout, seed=1)
    without = served.act([observation])[0].actions
    language.lm_head = torch.nn.Linear(language.config.hidden_size, 100, bias=False, dtype=torch.bfloat16)
    try:
        assert np.array_equal(served.act([observation])[0].actions, without)
    finally:
        language.lm_head = torch.nn.Identity()


def test_attention_is_sdpa_throughout_and_said(upstream_policies):
    served = upstream_policies("libero")
    eagle = served.policy.model.backbone.eagle_model
    kinds = {part.config._attn_implementation for part in (eagle, eagle.vision_model, eagle.language_model)}
    assert kinds == {"sdpa"}
    details = served.info().details
    assert details["attention"] == "sdpa" and "device is cpu" in details["attention_reason"]
    assert details["engine"] == "upstream" and details["upstream_commit"]


def test_with_flash_attention_nothing_of_upstream_is_touched(upstream):
    from gr00t.model.backbone import eagle_backbone

    before = dict(vars(eagle_backbone))
    with backbone(AttentionKernel("flash")):
        assert vars(eagle_backbone) == before
    with backbone(AttentionKernel("sdpa")):
        assert eagle_backbone.AutoModel is not before["AutoModel"]
    assert vars(eagle_backbone) == before
    assert "flash_attn" not in sys.modules or hasattr(sys.modules["flash_attn"], "__version__")


def same_transforms(ours, theirs):
    """Tells whether upstream would transform alike with both."""
    assert [type(our) for our in ours] == [type(their) for their in theirs]
    for one, other in zip(ours[:-1], theirs[:-1], strict=True):
        assert one.model_dump() == other.model_dump()
    for field in (
        "state_horizon",
        "action_horizon",
        "max_state_dim",
        "max_action_dim",
        "max_length",
        "formalize_language",
    ):
        assert getattr(ours[-1], field) == getattr(theirs[-1], field), field


@pytest.mark.parametrize("name", CONFIGS)
def test_a_shipped_robot_is_upstreams_own(upstream, name):
    from gr00t.experiment.data_config import DATA_CONFIG_MAP

    modalities, transforms = upstream.data_config(embodiment(name))
    theirs = DATA_CONFIG_MAP[CONFIGS[name]]
    assert modalities == theirs.modality_config()
    same_transforms(transforms.transforms, theirs.transform().transforms)


@pytest.mark.parametrize(
    ("name", "config"), [("libero", "LiberoDataConfig"), ("libero_mean_std", "LiberoDataConfigMeanStd")]
)
def test_transforms_are_those_of_upstreams_libero_example(upstream, name, config):
    example = pytest.importorskip("examples.Libero.custom_data_config", reason="upstream's examples are not here")
    modalities, transforms = upstream.data_config(embodiment(name))
    theirs = getattr(example, config)()
    assert modalities == theirs.modality_config()
    same_transforms(transforms.transforms, theirs.transform().transforms)


def test_the_prompt_is_the_instruction_as_in_training(upstream_policies):
    served = upstream_policies("libero")
    processor = served.policy.modality_transform.transforms[-1].eagle_processor
    observation = observe(served.layout, instruction="Open the drawer")
    inputs = served.policy.apply_transforms(served.to_upstream(observation))
    assert "</img>Open the drawer<|im_end|>" in processor.tokenizer.decode(inputs["eagle_input_ids"][0])
