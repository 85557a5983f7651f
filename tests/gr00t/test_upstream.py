"""With Isaac-GR00T's package: real inference of small random checkpoints through upstream's classes, on the CPU."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from services.gr00t import noise
from services.gr00t.attention import Attention, backbone
from services.gr00t.embodiments import EMBODIMENTS
from tests.gr00t.conftest import ROOT, SHARED
from tests.gr00t.harness import NAMES, body_of, observe, post
from vla_contract import PolicyClient
from vla_contract.protocol.act_json import loads
from vla_contract.testing import running
from vla_modelkit.canary import check_sees
from vla_modelkit.checkpoint import CheckpointError

every = pytest.mark.parametrize("name", NAMES)
TOLERANCE = 0.02  # of a range of 0.2: bfloat16 sums in another order when a batch has another size


def upstreams_answer(served, observation):
    """Returns what upstream's own `get_action` answers for the observation, with the noise that ours starts from."""
    head = served.policy.model.action_head
    seeds = [noise.seed_of(observation, served.seed)]
    with noise.GivenNoise(noise.draw(seeds, head.config.action_horizon, head.config.action_dim)):
        parts = served.policy.get_action(served.layout.to_upstream(observation))
    return served.layout.to_actions(parts)[0]


@every
def test_actions_are_upstreams_bit_for_bit(tiny_policies, name):
    served = tiny_policies(name)
    observation = observe(served.layout, seed=1)
    chunk = served.act([observation])[0].actions
    assert chunk.shape == (16, 7) and chunk.dtype == np.float32
    assert np.array_equal(chunk, upstreams_answer(served, observation))


@every
def test_actions_depend_on_pictures_state_instruction_and_step(tiny_policies, name):
    served = tiny_policies(name)
    one = observe(served.layout, seed=1)
    others = [
        observe(served.layout, seed=1, images=observe(served.layout, seed=2).images),
        observe(served.layout, seed=1, state=-one.state),
        observe(served.layout, seed=1, instruction="close the drawer"),
        observe(served.layout, seed=1, step=1),
    ]
    base = served.act([one])[0].actions
    assert all(not np.array_equal(base, served.act([other])[0].actions) for other in others)


def test_the_same_step_of_an_episode_gets_the_same_actions_again(tiny_policies):
    served = tiny_policies("libero")
    first, again = (observe(served.layout, seed=1, session=name) for name in ("one.2.3.0.a", "two.2.3.1.b"))
    assert np.array_equal(served.act([first])[0].actions, served.act([again])[0].actions)


def test_a_batch_of_different_prompts_answers_as_one_by_one(tiny_policies):
    served = tiny_policies("libero")
    texts = ("pick up the cup", "put the cup on the plate in the drawer", "open the box", "close the top drawer slowly")
    asked = [observe(served.layout, seed=k, instruction=text) for k, text in enumerate(texts)]
    together = served.act(asked)
    for observation, chunk in zip(asked, together, strict=True):
        assert np.allclose(chunk.actions, served.act([observation])[0].actions, atol=TOLERANCE)


def test_equally_long_prompts_share_one_pass(tiny_policies, monkeypatch):
    served = tiny_policies("libero")
    sizes = []
    real = type(served).infer
    monkeypatch.setattr(
        type(served), "infer", lambda self, inputs, seeds: sizes.append(len(seeds)) or real(self, inputs, seeds)
    )
    words = ("pick up the cup", "pick up the pan", "put it on the stove and leave")
    served.act([observe(served.layout, seed=k, instruction=text) for k, text in enumerate(words)])
    assert sorted(sizes) == [1, 2]


def test_one_bad_observation_fails_alone(tiny_policies):
    served = tiny_policies("libero")
    good, bad = observe(served.layout, seed=1), observe(served.layout, state=np.zeros(3, np.float32))
    results = served.act([bad, good])
    assert isinstance(results[0], ValueError)
    assert np.array_equal(results[1].actions, served.act([good])[0].actions)


def test_without_its_head_the_language_model_gives_the_same_features(tiny_policies, tiny_checkpoints, upstream):
    served = tiny_policies("libero")
    language = served.policy.model.backbone.eagle_model.language_model
    assert isinstance(language.lm_head, torch.nn.Identity)
    observation = observe(served.layout, seed=1)
    without = served.act([observation])[0].actions
    language.lm_head = torch.nn.Linear(language.config.hidden_size, 100, bias=False, dtype=torch.bfloat16)
    try:
        assert np.array_equal(served.act([observation])[0].actions, without)
    finally:
        language.lm_head = torch.nn.Identity()


def test_attention_is_sdpa_throughout_and_said(tiny_policies):
    served = tiny_policies("libero")
    eagle = served.policy.model.backbone.eagle_model
    kinds = {part.config._attn_implementation for part in (eagle, eagle.vision_model, eagle.language_model)}
    assert kinds == {"sdpa"}
    details = served.info().details
    assert details["attention"] == "sdpa" and "device is cpu" in details["attention_reason"]


def test_with_flash_attention_nothing_of_upstream_is_touched(upstream):
    from gr00t.model.backbone import eagle_backbone

    before = dict(vars(eagle_backbone))
    with backbone(Attention("flash")):
        assert vars(eagle_backbone) == before
    with backbone(Attention("sdpa")):
        assert eagle_backbone.AutoModel is not before["AutoModel"]
    assert vars(eagle_backbone) == before
    assert "flash_attn" not in sys.modules or hasattr(sys.modules["flash_attn"], "__version__")


@every
def test_info_is_complete(tiny_policies, name):
    served = tiny_policies(name)
    info, one = served.info(), EMBODIMENTS[name]
    assert info.cameras == tuple(one.cameras) and info.image_hw == (96, 96) and info.needs_state
    assert (info.horizon, info.action_size) == (16, 7)
    assert info.details["embodiment"] == name and info.details["gripper"] == one.gripper
    assert info.details["denoising_steps"] == str(one.denoising_steps) == str(served.policy.denoising_steps)
    assert info.checkpoint.repo == "random-tiny" and len(info.checkpoint.sha256) == 64


def test_a_model_that_does_not_look_is_not_served(tiny_policies, monkeypatch):
    served = tiny_policies("libero")
    check_sees(served, served.example)
    eagle = type(served.policy.model.backbone.eagle_model)
    real = eagle.extract_feature
    monkeypatch.setattr(eagle, "extract_feature", lambda self, pixels: torch.zeros_like(real(self, pixels)))
    with pytest.raises(CheckpointError, match="does not see its picture"):
        check_sees(served, served.example)


def test_mean_and_deviation_where_the_embodiment_says_so(tiny_policies):
    """Both LIBERO embodiments from one network output: each un-normalises it in its own way."""
    output = torch.full((1, 1, 32), 0.5)
    for name, arm in (("libero", 0.05), ("libero_mean_std", 0.025)):  # 0.5 of ±0.1; 0.5 of a deviation of 0.05
        parts = tiny_policies(name).policy.unapply_transforms({"action": output.clone()})
        actions = tiny_policies(name).layout.to_actions(parts)[0, 0]
        assert np.allclose(actions, [arm] * 6 + [0.55], atol=1e-6), name


@pytest.mark.parametrize(
    ("name", "config"), [("libero", "LiberoDataConfig"), ("libero_mean_std", "LiberoDataConfigMeanStd")]
)
def test_transforms_are_those_of_upstreams_libero_example(upstream, name, config):
    example = pytest.importorskip("examples.Libero.custom_data_config", reason="upstream's examples are not here")
    modalities, transforms = upstream.data_config(EMBODIMENTS[name])
    theirs = getattr(example, config)()
    assert modalities == theirs.modality_config()
    assert [type(one) for one in transforms.transforms] == [type(one) for one in theirs.transform().transforms]
    for ours, other in zip(transforms.transforms[:-1], theirs.transform().transforms[:-1], strict=True):
        assert ours.model_dump() == other.model_dump()
    horizons = (
        "state_horizon",
        "action_horizon",
        "max_state_dim",
        "max_action_dim",
        "max_length",
        "formalize_language",
    )
    for field in horizons:
        assert getattr(transforms.transforms[-1], field) == getattr(theirs.transform().transforms[-1], field), field


def test_the_prompt_is_the_instruction_as_in_training(tiny_policies, monkeypatch):
    served = tiny_policies("libero")
    processor = served.policy.modality_transform.transforms[-1].eagle_processor
    inputs = served.policy.apply_transforms(
        served.layout.to_upstream(observe(served.layout, instruction="Open the drawer"))
    )
    text = processor.tokenizer.decode(inputs["eagle_input_ids"][0])
    assert "</img>Open the drawer<|im_end|>" in text


def test_the_program_serves_a_checkpoint_over_http(tiny_checkpoints, tiny_policies, tmp_path):
    """`python -m services.gr00t`: gets ready, answers on both routes what the policy answers, leaves nothing behind."""
    found, served = tiny_checkpoints("libero"), tiny_policies("libero")
    keep = ("VLALAB_GR00T_SOURCE",)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VLALAB_") or k in keep}
    environment |= {"PYTHONPATH": ":".join((str(ROOT), *SHARED, os.environ.get("PYTHONPATH", "")))}
    environment |= {
        "VLALAB_GR00T_CHECKPOINT": str(found.folder),
        "VLALAB_GR00T_DEVICE": "cpu",
        "VLALAB_LOCK_HASH": "f" * 64,
    }
    environment.pop("HF_MODULES_CACHE", None)
    log, temporary = tmp_path / "log", tmp_path / "tmp"
    temporary.mkdir()
    environment["TMPDIR"] = str(temporary)
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "services.gr00t", "--port", "0"], env=environment, cwd=ROOT, stderr=file, stdout=file
        )
    try:
        url = wait_for_address(log, process)
        with PolicyClient(url) as client:
            client.wait_ready(timeout_s=180)
            info = client.info()
            assert info.lock_hash == "f" * 64 and info.checkpoint == served.info().checkpoint
            observation = observe(served.layout, seed=7)
            chunk = client.act(observation)
            assert np.array_equal(chunk.actions, served.act([observation])[0].actions)
        status, _, value = post(url, {"observation": body_of(observation, served.layout)}, {"X-Request-Id": "again"})
        assert status == 200
        asked = observe(served.layout, seed=7, session="act-again")
        wanted = served.layout.to_parts(served.act([asked])[0].actions)
        assert all(np.array_equal(loads(json.dumps(value))[key], part) for key, part in wanted.items())
    finally:
        process.terminate()
        assert process.wait(30) in (0, -signal.SIGTERM), log.read_text()[-2000:]
    assert "Traceback" not in log.read_text()
    assert not list(temporary.glob("vlalab-*")), "the copy of the Eagle model's code is removed"


def test_contract_routes_over_the_real_policy(tiny_policies):
    from services.gr00t.act_json import decoder

    served = tiny_policies("oxe_droid")
    with running(served, decode_act=decoder(served.layout)) as service:
        observation = observe(served.layout, seed=3)
        status, _, value = post(service.url, {"observation": body_of(observation, served.layout)})
        assert status == 200
        assert {key: part.shape for key, part in loads(json.dumps(value)).items()} == {
            "action.eef_position_delta": (16, 3),
            "action.eef_rotation_delta": (16, 3),
            "action.gripper_position": (16, 1),
        }


def wait_for_address(log, process, timeout_s=60.0):
    """Returns the address in the log's first line."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end and process.poll() is None:
        if found := re.search(r"listening on (\S+)", log.read_text()):
            return found[1]
        time.sleep(0.1)
    raise AssertionError(log.read_text())
