"""OpenVLA-OFT: our engine against upstream's unmodified code (make_oft_reference.py), its files, and its service."""

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from services.libero.profiles import PROFILES
from services.openvla.checkpoint import tiny
from services.openvla.checkpoint.config import load_config
from services.openvla.checkpoint.oft import Oft
from services.openvla.checkpoint.tokenizer import PromptTokenizer
from services.openvla.decoding.actions import codec_of, normalise_state, unnormalise
from services.openvla.model.oft import FOLLOWING, PLACEHOLDERS
from services.openvla.service.loading import load_engine, load_policy
from services.openvla.service.policy import resize
from services.openvla.service.settings import ModelSettings
from tests.openvla.cases import INSTRUCTIONS, pictures, states, wrist_pictures
from tests.running import running
from vla_contract import InvalidObservation, Observation, PolicyClient, PolicyRefused
from vla_modelkit.checkpoint import CheckpointError, write_record
from vla_modelkit.graphs import Eager

KEY = "libero_goal_no_noops"
TOLERANCE = 1e-4  # of the largest value: upstream in fp32 is as far from float64
HEAD, PROPRIO = "action_head--150000_checkpoint.pt", "proprio_projector--150000_checkpoint.pt"
KINDS = {"l1": Oft(), "tokens": Oft(False, False)}


def assert_close(values, stored):
    assert np.abs(values - stored).max() < TOLERANCE * np.abs(stored).max()


@pytest.fixture(scope="module")
def reference():
    with np.load(Path(__file__).parent / "data/reference-oft.npz", allow_pickle=False) as stored:
        return dict(stored)


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Kind -> directory of a tiny checkpoint."""
    root = tmp_path_factory.mktemp("oft")
    return {kind: tiny.write(root / kind, replace(tiny.SPECS["tiny"], oft=oft)) for kind, oft in KINDS.items()}


@pytest.fixture(scope="module")
def engines(directories):
    settings = ModelSettings(device="cpu", dtype="fp32", max_batch=8)
    images = {"l1": 2, "tokens": 1}
    return {k: load_engine(settings, d, load_config(d), images[k])[0] for k, d in directories.items()}


@pytest.fixture(scope="module")
def inputs(directories, engines):
    """(pixels uint8 [8, 2, S, S, 3], prompts, normalised states [8, 8]), by our own processing."""
    config, tokenizer = engines["l1"].model.config, PromptTokenizer(directories["l1"])
    both = zip(pictures(), wrist_pictures(), strict=True)
    pixels = np.stack([[resize(image, config.towers[0]) for image in pair] for pair in both])
    prompts = [tokenizer.prompt_ids(text) for text in INSTRUCTIONS]
    return pixels, prompts, normalise_state(states(), config.proprio_stats[KEY])


@pytest.fixture
def directory(directories, tmp_path):
    """A copy of the checkpoint with the L1 head that a test may break."""
    return shutil.copytree(directories["l1"], tmp_path / "broken")


def network_inputs(prompts, rows, states):
    """Returns (ids, lengths, states) as tensors, with prompts padded on the right."""
    lengths = [len(prompts[row]) for row in rows]
    ids = np.full((len(rows), max(lengths) + FOLLOWING), 2)
    for line, row in zip(ids, rows, strict=True):
        line[: len(prompts[row])] = prompts[row]
    return torch.from_numpy(ids), torch.tensor(lengths), torch.from_numpy(states[rows]).float()


def test_both_images_are_processed_as_upstream_does(inputs, engines, reference):
    vision = engines["l1"].model.vision
    for index, stored in zip((2, 7), reference["pixels"], strict=True):
        channels = []
        for image in inputs[0][index]:
            scaled = torch.from_numpy(image).permute(2, 0, 1) / 255
            channels += [(scaled - mean) / std for mean, std in zip(vision.mean, vision.std, strict=True)]
        np.testing.assert_array_equal(torch.cat(channels).numpy(), stored)


@torch.inference_mode()
def test_features_of_images_and_state_are_upstreams(inputs, engines, reference):
    pixels, prompts, normal = inputs
    model = engines["l1"].oft
    for index, stored in zip((2, 7), reference["features"], strict=True):
        ids, lengths, state = network_inputs(prompts, [index], normal)
        x = model.embeddings(torch.from_numpy(pixels[[index]]), ids, lengths, state)
        assert_close(x[0, 1 : 1 + model.prefix].numpy(), stored)


@pytest.mark.parametrize("batch", [1, 8])
@torch.inference_mode()
def test_hidden_states_and_actions_are_upstreams(inputs, engines, reference, batch):
    pixels, prompts, normal = inputs
    engine = engines["l1"]
    for start in range(0, 8, batch):
        rows = list(range(start, start + batch))
        ids, lengths, state = network_inputs(prompts, rows, normal)
        x = engine.oft.embeddings(torch.from_numpy(pixels[rows]), ids, lengths, state)
        hidden = engine.oft.hidden(x, lengths, batch > 1)[:, ::5].numpy()
        assert_close(hidden, reference["hidden"][rows])
        made = engine.generate(pixels[rows], [prompts[row] for row in rows], normal[rows])
        assert_close(unnormalise(made, engine.model.config.norm_stats[KEY]), reference["actions"][rows])


@pytest.mark.parametrize("batch", [1, 8])
def test_actions_of_tokens_are_upstreams(inputs, engines, reference, batch):
    pixels, prompts, _ = inputs
    engine = engines["tokens"]
    for start in range(0, 8, batch):
        rows = slice(start, start + batch)
        tokens = engine.generate(pixels[rows, :1], prompts[rows])
        actions = unnormalise(codec_of(engine.model.config).values(tokens), engine.model.config.norm_stats[KEY])
        np.testing.assert_allclose(actions, reference["tokens_actions"][rows], atol=1e-7)


@torch.inference_mode()
def test_attention_is_bidirectional(inputs, engines):
    """A change of the last placeholder, which no causal model would see, changes the first hidden state."""
    pixels, prompts, normal = inputs
    model = engines["l1"].oft
    ids, lengths, state = network_inputs(prompts, [0], normal)
    x = model.embeddings(torch.from_numpy(pixels[:1]), ids, lengths, state)
    changed = x.clone()
    last = model.prefix + len(prompts[0]) + PLACEHOLDERS - 1
    assert not x[0, last].any()  # a placeholder
    changed[0, last] += 1.0
    before, after = (model.hidden(value, lengths, False)[0, 0] for value in (x, changed))
    assert (before - after).abs().max() > 1e-3
    cache = model.base.llama.new_cache(1, x.shape[1])
    before, after = (model.base.llama.prefill(value, cache)[0, last - 1] for value in (x, changed))
    assert torch.equal(before, after)


def test_padded_shapes_change_nothing(inputs, engines, reference, monkeypatch):
    """What a GPU runs, with batch and prompts padded to a few sizes, run here without capture."""
    pixels, prompts, normal = inputs
    engine = engines["l1"]
    engine.fixed_shapes = True
    keys = []
    run = Eager.run
    monkeypatch.setattr(Eager, "run", lambda runner, key, *rest: keys.append(key) or run(runner, key, *rest))
    try:
        for count in (1, 3, 8):
            made = engine.generate(pixels[:count], prompts[:count], normal[:count])
            assert_close(unnormalise(made, engine.model.config.norm_stats[KEY]), reference["actions"][:count])
    finally:
        engine.fixed_shapes = False
    assert {rows for _, rows, _ in keys} == {1, 4, 8} and all((engine.oft.prefix + n) % 8 == 0 for *_, n in keys)


# --- files ------------------------------------------------------------------------------------------------------


def test_the_kinds_are_told_apart(directories, checkpoints):
    assert {kind: load_config(path).oft for kind, path in directories.items()} == KINDS
    assert load_config(checkpoints()).oft is None


def test_upstreams_code_gives_a_checkpoint_of_tokens_away(checkpoints, tmp_path):
    copy = shutil.copytree(checkpoints(), tmp_path / "copy")
    (copy / "modeling_prismatic.py").write_text("from prismatic.vla.constants import NUM_ACTIONS_CHUNK\n")
    assert load_config(copy).oft == Oft(False, False)


@pytest.mark.parametrize("name", ["noisy_action_projector--1_checkpoint.pt", "vision_backbone--latest_checkpoint.pt"])
def test_diffusion_and_film_are_refused(name, directory):
    (directory / name).write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"{name}.*upstream's vla-scripts/deploy.py"):
        load_config(directory)


class Code:
    def __reduce__(self):
        return (print, ("executed",))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"module.noise_predictor.mlp_resnet.fc1.weight": torch.zeros(1)}, "a diffusion head"),
        ({"module.model.fc1.weight": Code()}, "cannot be read as plain tensors"),
        ({"module.model.fc1.weight": 1}, "other values than tensors"),
        ({"module.model.fc1.weight": torch.zeros(3)}, "lacks .* tensors: action_head"),
    ],
)
def test_a_head_that_is_none_is_refused(state, text, directory, capsys):
    torch.save(state, directory / HEAD)
    with pytest.raises(CheckpointError, match=text):
        load_policy(settings(directory))
    assert "executed" not in capsys.readouterr().out


def test_other_files_are_refused_as_heads(directory):
    (directory / HEAD).write_bytes(pickle.dumps({"x": Code()}))
    with pytest.raises(CheckpointError, match="not a file of torch.save"):
        load_policy(settings(directory))


def test_a_missing_or_second_part_is_refused(directory):
    shutil.copy(directory / HEAD, directory / "action_head--50000_checkpoint.pt")
    with pytest.raises(CheckpointError, match="2 files of action_head"):
        load_config(directory)
    for path in directory.glob("action_head--*"):
        path.unlink()
    with pytest.raises(CheckpointError, match="proprio_projector and no action_head"):
        load_config(directory)


def test_statistics_without_the_state_are_not_served(directory):
    path = directory / "dataset_statistics.json"
    statistics = json.loads(path.read_text())
    del statistics[KEY]["proprio"]
    path.write_text(json.dumps(statistics))
    config = load_config(directory)
    assert KEY not in config.norm_stats and "no proprio q01 and q99; expected 8" in config.unusable[KEY]


def test_the_number_of_images_has_no_default(directory):
    with pytest.raises(CheckpointError, match="--images 1 .* --images 2"):
        load_policy(ModelSettings(checkpoint=str(directory), device="cpu"))
    repo = "moojink/openvla-7b-oft-finetuned-libero-goal"
    write_record(directory, repo, "main", {})
    assert len(load_policy(ModelSettings(checkpoint=str(directory), device="cpu")).info().cameras) == 2
    with pytest.raises(CheckpointError, match="trained with 2 images .* but --images is 1"):
        load_policy(settings(directory, images=1))


def test_settings_of_one_model_are_refused_for_the_other(checkpoints, directories):
    with pytest.raises(ValueError, match="--images 2 is for OpenVLA-OFT"):
        load_policy(settings(checkpoints()))
    for name, value, text in (("engine", "hf", "engine hf runs OpenVLA"), ("attention", "flash", "OpenVLA-OFT")):
        with pytest.raises(ValueError, match=text):
            load_policy(settings(directories["l1"], **{name: value}))


# --- service ----------------------------------------------------------------------------------------------------


def settings(directory, **changes):
    return ModelSettings(**{"checkpoint": str(directory), "device": "cpu", "max_batch": 4, "images": 2, **changes})


def observation(index=0, text=INSTRUCTIONS[0], key=KEY):
    images = {"agentview": pictures()[index], "robot0_eye_in_hand": wrist_pictures()[index]}
    return Observation(images, states()[index].astype(np.float32), text, f"client {index}", 0, unnorm_key=key)


@pytest.fixture(scope="module")
def policy(directories):
    return load_policy(settings(directories["l1"]))


def test_chunks_of_eight_are_upstreams_and_do_not_depend_on_the_batch(policy, reference):
    seen = [observation(index, text) for index, text in enumerate(INSTRUCTIONS[:4])]
    together = np.stack([chunk.actions for chunk in policy.act(seen)])
    alone = np.stack([policy.act([one])[0].actions for one in seen])
    assert together.shape == (4, 8, 7)
    assert_close(alone, together)
    assert_close(together, reference["actions"][:4])


def test_each_input_and_the_statistics_change_the_chunk(policy):
    one = observation()
    wrist = replace(one, images={**one.images, "robot0_eye_in_hand": pictures()[3]})
    others = [wrist, replace(one, state=one.state + 0.1), replace(one, unnorm_key="libero_10_no_noops")]
    expected, *found = (chunk.actions for chunk in policy.act([one, *others]))
    assert not any(np.allclose(value, expected, atol=1e-3) for value in found[:2])
    assert_close(found[2], expected)  # the tiny checkpoint's ranges are the same


def test_the_profile_sends_what_the_policy_expects(policy):
    info, profile = policy.info(), PROFILES["openvla-oft"]
    assert (info.cameras, info.state, info.action) == (profile.cameras, profile.state, profile.action)
    assert info.horizon == profile.execute == 8 and info.profile == "openvla-oft"
    assert (info.details["head"], info.details["images"]) == ("l1", "2")


def test_the_service_answers_chunks_and_refuses_what_is_missing(policy):
    seen = observation()
    wrong = {
        "robot0_eye_in_hand": replace(seen, images={"agentview": seen.images["agentview"]}),
        r"8": replace(seen, state=seen.state[:7]),
        "state": replace(seen, state=None),
    }
    with running(lambda: policy) as served, PolicyClient(served.url) as client:
        assert client.info().profile == "openvla-oft"
        assert_close(client.act(seen).actions, policy.act([seen])[0].actions)
        for text, one in wrong.items():
            with pytest.raises(PolicyRefused, match=text) as refused:
                client.act(one)
            assert refused.value.status == 422


def test_a_too_long_instruction_fails_alone(policy):
    good, bad = policy.act([observation(), observation(text="x y z " * 100)])
    assert good.actions.shape == (8, 7) and isinstance(bad, InvalidObservation)


@pytest.mark.parametrize("quant", ["nf4", "int8"])
def test_quantised_weights_are_smaller_and_still_see(directories, policy, quant):
    packed = load_policy(settings(directories["l1"], quant=quant))
    memory, plain = (one._engine.oft.memory() for one in (packed, policy))
    assert packed.info().quantization == quant and memory["llama blocks"] < plain["llama blocks"] / 3.5
    found = np.stack([chunk.actions for chunk in packed.act([observation(index) for index in range(3)])])
    assert np.isfinite(found).all() and len(np.unique(found, axis=0)) == 3


def test_a_head_that_is_not_finite_is_refused(directory):
    state = torch.load(directory / HEAD, weights_only=True)
    state["module.model.fc2.bias"][3] = float("nan")
    torch.save(state, directory / HEAD)
    with pytest.raises(CheckpointError, match="NaN or infinite"):
        load_policy(settings(directory))


def test_tokens_are_served_with_one_image_and_no_state(directories):
    served = load_policy(settings(directories["tokens"], images=1))
    info = served.info()
    assert (info.cameras, info.state, info.horizon) == (("agentview",), (), 8)
    chunk = served.act([replace(observation(), state=None)])[0]
    assert chunk.actions.shape == (8, 7)
