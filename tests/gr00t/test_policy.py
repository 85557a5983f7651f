"""Real inference of small random checkpoints on our engine, on the CPU, and the program that serves them."""

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
from safetensors.torch import load_file, save_file

from services.gr00t.checkpoint import tiny
from services.gr00t.checkpoint.directory import METADATA, find
from services.gr00t.checkpoint.embodiment import EMBODIMENT_FILE, Embodiment, Transform, embodiment, write
from services.gr00t.service.act_json import decoder
from services.gr00t.service.layout import layout
from services.gr00t.service.loading import load_own_policy
from services.gr00t.service.settings import Settings
from tests.gr00t.conftest import ROOT, SHARED
from tests.gr00t.harness import NAMES, body_of, observe, post
from tests.running import running
from vla_contract import PolicyClient
from vla_contract.protocol.act_json import loads
from vla_modelkit.canary import check_sees
from vla_modelkit.checkpoint import RECORD, CheckpointError

every = pytest.mark.parametrize("name", NAMES)
TOLERANCE = 1e-5  # of a range of 0.2: a batch of another size sums in another order


def copy_of(found, directory, change):
    """Returns a checkpoint like `found` whose tensors `change` has changed."""
    import shutil

    shutil.copytree(found.directory, directory)
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    record = json.loads((directory / RECORD).read_text())
    (directory / RECORD).write_text(json.dumps({key: record[key] for key in ("embodiment", "eagle")}))
    return find(str(directory))


@every
def test_actions_depend_on_images_state_instruction_and_step(tiny_policies, name):
    served = tiny_policies(name)
    one = observe(served.layout, seed=1)
    others = [
        observe(served.layout, seed=1, images=observe(served.layout, seed=2).images),
        observe(served.layout, seed=1, state=-one.state),
        observe(served.layout, seed=1, instruction="close the drawer"),
        observe(served.layout, seed=1, step=1),
    ]
    base = served.act([one])[0].actions
    assert base.shape == (16, served.layout.action_size) and base.dtype == np.float32
    assert all(not np.array_equal(base, served.act([other])[0].actions) for other in others)


def test_each_camera_matters(tiny_policies):
    served = tiny_policies("libero")
    one = observe(served.layout, seed=1)
    base = served.act([one])[0].actions
    for camera in served.layout.embodiment.cameras:
        images = {**one.images, camera: 255 - one.images[camera]}
        assert not np.array_equal(base, served.act([observe(served.layout, seed=1, images=images)])[0].actions), camera


def test_a_batch_of_different_prompts_answers_as_one_by_one(tiny_policies):
    served = tiny_policies("libero")
    texts = ("pick up the cup", "put the cup on the plate in the drawer", "open the box", "close the top drawer slowly")
    asked = [observe(served.layout, seed=k, instruction=text) for k, text in enumerate(texts)]
    together = served.act(asked)
    for observation, chunk in zip(asked, together, strict=True):
        assert np.allclose(chunk.actions, served.act([observation])[0].actions, atol=TOLERANCE)


def test_one_bad_observation_fails_alone(tiny_policies):
    served = tiny_policies("libero")
    good, bad = observe(served.layout, seed=1), observe(served.layout, state=np.zeros(3, np.float32))
    results = served.act([bad, good])
    assert isinstance(results[0], ValueError)
    assert np.array_equal(results[1].actions, served.act([good])[0].actions)


@pytest.mark.parametrize(
    "mark", ["<image-9>", "<image-1>", "<video-1>", "<IMG_CONTEXT>", "<img>", "</img>", "<|im_end|>"]
)
def test_an_instruction_with_a_placeholder_is_refused(tiny_policies, mark):
    served = tiny_policies("libero")
    answers = served.act(
        [observe(served.layout, instruction=text) for text in (f"pick up {mark} the cup", "is 3 < 4 and 5 > 2? | <go>")]
    )
    assert "special token" in str(answers[0]) and answers[1].actions.shape == (16, 7)


def test_cross_attentions_keys_are_made_once_a_request(tiny_policies, monkeypatch):
    served = tiny_policies("libero")
    head, calls = served.engine.model.action_head, []
    crossing = head.model.transformer_blocks[0].attn1
    real = type(crossing).keys_values
    monkeypatch.setattr(type(crossing), "keys_values", lambda self, context: calls.append(self) or real(self, context))
    served.act([observe(served.layout, seed=1)])
    assert calls.count(crossing) == 1 and len(served.engine._moments) == 8


@every
def test_info_is_complete(tiny_policies, name):
    served = tiny_policies(name)
    info, one = served.info(), embodiment(name)
    assert info.cameras == tuple(one.cameras) and info.image_hw == (96, 96) and info.needs_state
    assert (info.horizon, info.quantization) == (16, "fp32") and info.details["embodiment"] == name
    assert info.profile == one.profile
    assert (info.action, info.state) == (served.layout.action_parts, served.layout.state_parts)
    assert info.details["denoising_steps"] == str(one.denoising_steps) and info.details["engine"] == "vla-lab"
    assert info.details["attention"] == "sdpa" and "device is cpu" in info.details["attention_reason"]
    assert info.checkpoint.repo == "random-tiny" and len(info.checkpoint.sha256) == 64
    variant = os.environ.get("VLALAB_VARIANT")
    upstream = f"{variant}: torch {info.details['torch']}, upstream's pin is 2.5.1" if variant else None
    assert info.details.get("variant") == upstream


def test_a_model_that_does_not_look_is_not_served(tiny_policies, monkeypatch):
    served = tiny_policies("libero")
    check_sees(served, served.example)
    eagle = served.engine.model.backbone["eagle_model"]
    real = type(eagle).forward
    monkeypatch.setattr(type(eagle), "forward", lambda self, pictures, *rest: real(self, 0 * pictures, *rest))
    with pytest.raises(CheckpointError, match="does not see its image"):
        check_sees(served, served.example)


def test_in_half_precision_actions_are_nearly_the_same(tiny_checkpoints, tiny_policies):
    exact, found = tiny_policies("libero"), tiny_checkpoints("libero")
    half = load_own_policy(Settings(device="cpu", dtype="bf16"), found, exact.layout)
    asked = observe(exact.layout, seed=1)
    apart = np.abs(half.act([asked])[0].actions - exact.act([asked])[0].actions)
    assert 0 < np.median(apart) < 0.05 and half.info().details["dtype"] == "bf16"


def test_what_published_checkpoints_hold_and_nobody_needs_is_left_out(tiny_checkpoints, tiny_policies, tmp_path):
    """The language model's head, which equals its embeddings, and SigLIP's pooling."""
    served = tiny_policies("libero")

    def add(tensors):
        eagle = "backbone.eagle_model."
        tensors[eagle + "language_model.lm_head.weight"] = torch.zeros(10, 64)
        tensors[eagle + "vision_model.vision_model.head.probe"] = torch.zeros(1, 1, 32)

    fuller = load_own_policy(
        Settings(device="cpu"), copy_of(tiny_checkpoints("libero"), tmp_path / "c", add), served.layout
    )
    asked = observe(served.layout, seed=1)
    assert np.array_equal(fuller.act([asked])[0].actions, served.act([asked])[0].actions)


def test_weights_that_are_not_a_numbers_are_not_served(tiny_checkpoints, tiny_policies, tmp_path):
    def spoil(tensors):
        tensors["action_head.vlln.weight"][0] = float("nan")

    broken = load_own_policy(
        Settings(device="cpu"),
        copy_of(tiny_checkpoints("libero"), tmp_path / "c", spoil),
        tiny_policies("libero").layout,
    )
    with pytest.raises(CheckpointError, match="NaN or infinite"):
        check_sees(broken, broken.example)


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        (("backbone_cfg", "project_to_dim"), 1536, "project_to_dim = 1536"),
        (("action_head_cfg", "use_vlln"), False, "use_vlln = False"),
        (("action_head_cfg", "diffusion_model_cfg", "positional_embeddings"), "sinusoidal", "positional_embeddings"),
    ],
)
def test_what_the_engine_does_not_do_is_refused_by_name(tiny_checkpoints, tiny_policies, tmp_path, part, value, words):
    found = copy_of(tiny_checkpoints("libero"), tmp_path / "c", lambda tensors: None)
    config = json.loads((found.directory / "config.json").read_text())
    place = config
    for name in part[:-1]:
        place = place[name]
    place[part[-1]] = value
    (found.directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=words):
        load_own_policy(Settings(device="cpu"), found, tiny_policies("libero").layout)


def test_a_robot_of_ones_own_is_a_file_next_to_the_weights(tiny_checkpoints, tmp_path):
    """What fine-tuning leaves: statistics under new_embodiment, embodiment.json, and no word of it in the lab."""
    found = copy_of(tiny_checkpoints("libero"), tmp_path / "c", lambda tensors: None)
    parts = {"arm": Transform("sin_cos"), "hand": Transform("q99")}
    own = Embodiment(
        "ours", "new_embodiment", {"front": "cam"}, "annotation.task", parts,
        {"arm": Transform("min_max"), "hand": Transform("binary")}, denoising_steps=2,
    )  # fmt: skip
    held = tiny.metadata(own, 96)
    for kind in ("state", "action"):
        held["modalities"][kind]["arm"]["shape"] = [6]
        for values in held["statistics"][kind]["arm"].values():
            values *= 6
    write(found.directory / EMBODIMENT_FILE, own)
    (found.directory / METADATA).write_text(json.dumps({"new_embodiment": held}))
    found = find(str(found.directory))
    assert found.embodiment() == own
    served = load_own_policy(Settings(device="cpu"), found, layout(own, held))
    with running(served, decode_act=decoder(served.layout)) as service:
        observation = observe(served.layout, seed=3)
        status, _, value = post(service.url, {"observation": body_of(observation, served.layout)})
    assert status == 200
    answer = loads(json.dumps(value))
    assert {key: part.shape for key, part in answer.items()} == {"action.arm": (16, 6), "action.hand": (16, 1)}
    assert set(np.unique(answer["action.hand"])) <= {0.0, 1.0}


UPSTREAMS = ("gr00t", "diffusers", "albumentations", "pytorch3d", "flash_attn", "timm", "decord", "peft", "cv2")


def test_the_program_serves_a_checkpoint_over_http(tiny_checkpoints, tiny_policies, tmp_path):
    """`python -m services.gr00t`: gets ready, answers on both routes what the policy answers, leaves nothing behind.

    All that where neither Isaac-GR00T nor what only it needs can be imported.
    """
    found, served = tiny_checkpoints("libero"), tiny_policies("libero")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VLALAB_")}
    (tmp_path / "without").mkdir()
    none = f"import sys\nsys.modules.update(dict.fromkeys({UPSTREAMS!r}))\n"
    (tmp_path / "without" / "sitecustomize.py").write_text(none)
    found_in = (str(tmp_path / "without"), str(ROOT), *SHARED, os.environ.get("PYTHONPATH", ""))
    environment |= {
        "PYTHONPATH": ":".join(found_in),
        "VLALAB_GR00T_CHECKPOINT": str(found.directory),
        "VLALAB_GR00T_DEVICE": "cpu",
        "VLALAB_LOCK_HASH": "f" * 64,
    }
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
            assert chunk.actions.shape == (16, 7)
            assert np.array_equal(chunk.actions, served.act([observation])[0].actions)
        status, _, value = post(url, {"observation": body_of(observation, served.layout)}, {"X-Request-Id": "again"})
        assert status == 200
        asked = observe(served.layout, seed=7, session="act-again")
        wanted = served.layout.named_actions(served.act([asked])[0].actions)
        assert all(np.array_equal(loads(json.dumps(value))[key], part) for key, part in wanted.items())
    finally:
        process.terminate()
        assert process.wait(90) in (0, -signal.SIGTERM), log.read_text()[-2000:]
    assert "Traceback" not in log.read_text()
    assert not list(temporary.glob("vlalab-*"))


def wait_for_address(log, process, timeout_s=60.0):
    """Returns the address in the log's first line."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end and process.poll() is None:
        if found := re.search(r"listening on (\S+)", log.read_text()):
            return found[1]
        time.sleep(0.1)
    raise AssertionError(log.read_text())
