"""With Isaac-GR00T's package: its policy on the CPU against our engine, its data configurations against our robots."""

import numpy as np
import pytest

from services.gr00t.checkpoint.embodiment import embodiment
from tests.gr00t.harness import NAMES, observe

FIELDS = (
    "state_horizon", "action_horizon", "max_state_dim", "max_action_dim", "max_length", "formalize_language",
)  # fmt: skip
CONFIGS = {  # embodiment -> the name of upstream's own data configuration
    "oxe_droid": "oxe_droid", "gr1_arms_only": "fourier_gr1_arms_only", "gr1_arms_waist": "fourier_gr1_arms_waist",
    "gr1_full_upper_body": "fourier_gr1_full_upper_body", "agibot_genie1": "agibot_genie1", "so100": "so100",
    "so100_dualcam": "so100_dualcam", "unitree_g1": "unitree_g1", "unitree_g1_full_body": "unitree_g1_full_body",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_in_bfloat16_our_engine_answers_nearly_the_same(upstream_policies, tiny_policies, name):
    theirs, ours = upstream_policies(name), tiny_policies(name)
    observation = observe(ours.layout, seed=1)
    apart = np.abs(theirs.act([observation])[0].actions - ours.act([observation])[0].actions)
    assert np.median(apart) < 0.05  # of noise that spreads over ±0.2


def test_attention_is_sdpa_throughout(upstream_policies):
    eagle = upstream_policies("libero").policy.model.backbone.eagle_model
    kinds = {part.config._attn_implementation for part in (eagle, eagle.vision_model, eagle.language_model)}
    assert kinds == {"sdpa"}


def compare(upstream, name, theirs):
    """Holds our robot's names and transforms against those of upstream's data configuration."""
    modalities, transforms = upstream.data_config(embodiment(name))
    assert modalities == theirs.modality_config()
    own, others = transforms.transforms, theirs.transform().transforms
    assert [type(our) for our in own] == [type(their) for their in others]
    for one, other in zip(own[:-1], others[:-1], strict=True):
        assert one.model_dump() == other.model_dump()
    for field in FIELDS:
        assert getattr(own[-1], field) == getattr(others[-1], field), field


@pytest.mark.parametrize("name", CONFIGS)
def test_a_shipped_robot_is_upstreams_own(upstream, name):
    from gr00t.experiment.data_config import DATA_CONFIG_MAP

    compare(upstream, name, DATA_CONFIG_MAP[CONFIGS[name]])


@pytest.mark.parametrize(
    ("name", "config"), [("libero", "LiberoDataConfig"), ("libero_mean_std", "LiberoDataConfigMeanStd")]
)
def test_transforms_are_those_of_upstreams_libero_example(upstream, name, config):
    example = pytest.importorskip("examples.Libero.custom_data_config", reason="upstream's examples are not here")
    compare(upstream, name, getattr(example, config)())


def test_the_prompt_is_the_instruction_as_in_training(upstream_policies):
    served = upstream_policies("libero")
    processor = served.policy.modality_transform.transforms[-1].eagle_processor
    observation = observe(served.layout, instruction="Open the drawer")
    inputs = served.policy.apply_transforms(served.to_upstream(observation))
    assert "</img>Open the drawer<|im_end|>" in processor.tokenizer.decode(inputs["eagle_input_ids"][0])
