"""The seven ONNX modules: names and shapes that upstream's scripts give them, each equal to torch, and together equal
to the engine's action.
"""

import numpy as np
import onnxruntime
import pytest
import torch

from services.gr00t.export import comparison
from services.gr00t.export.__main__ import main
from tests.gr00t.harness import observe

# Isaac-GR00T at 4af2b622, deployment_scripts/export_onnx.py and build_engine.sh
NAMED = {
    "eagle2/vit_fp32": (["pixel_values", "position_ids"], "vit_embeds"),
    "eagle2/llm_fp32": (["inputs_embeds", "attention_mask"], "embeddings"),
    "action_head/vlln_vl_self_attention": (["backbone_features"], "output"),
    "action_head/state_encoder": (["state", "embodiment_id"], "output"),
    "action_head/action_encoder": (["actions", "timesteps_tensor", "embodiment_id"], "output"),
    "action_head/DiT_fp32": (["sa_embs", "vl_embs", "timesteps_tensor"], "output"),
    "action_head/action_decoder": (["model_output", "embodiment_id"], "output"),
}


@pytest.fixture(scope="module")
def written(tiny_checkpoints, tmp_path_factory):
    """The files of the tiny checkpoint: folder, and what the program printed."""
    directory = tmp_path_factory.mktemp("onnx")
    assert main(["--checkpoint", str(tiny_checkpoints("libero").directory), "--out", str(directory)]) == 0
    return directory


@pytest.fixture(scope="module")
def sessions(written):
    files = {name: str(written / f"{name}.onnx") for name in NAMED}
    return {
        name: onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]) for name, path in files.items()
    }


def test_names_and_shapes_are_upstreams(sessions):
    for name, (inputs, output) in NAMED.items():
        assert [one.name for one in sessions[name].get_inputs()] == inputs, name
        assert [output.name for output in sessions[name].get_outputs()] == [output], name
    dit = {one.name: one.shape for one in sessions["action_head/DiT_fp32"].get_inputs()}
    assert dit["sa_embs"][:2] == ["batch_size", 49] and dit["vl_embs"][:2] == ["batch_size", "sequence_length"]
    assert sessions["eagle2/vit_fp32"].get_inputs()[0].shape == ["batch_size", 3, 224, 224]
    assert sessions["action_head/state_encoder"].get_inputs()[0].shape == ["batch_size", 1, 64]


def test_together_they_are_the_engines_action(sessions, tiny_policies):
    """As upstream's deployed loop chains them, for two observations at once: sizes that were not exported."""
    policy = tiny_policies("libero")
    engine, model = policy.engine, policy.engine.model
    head, eagle = model.action_head, model.backbone["eagle_model"]
    rows = [policy.prepare(observe(policy.layout, seed=seed)) for seed in (1, 2)]
    noise = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(3))
    wanted = engine.infer(rows, noise)

    def run(name, *given):
        session = sessions[name]
        named = {one.name: value for one, value in zip(session.get_inputs(), given, strict=True)}
        return session.run(None, named)[0]

    images = np.concatenate([row.pictures for row in rows]).transpose(0, 3, 1, 2).astype(np.float32)
    patches = np.tile(np.arange(model.config.patches), (len(images), 1))
    with torch.inference_mode():
        ids = torch.tensor([row.ids for row in rows])
        seen = eagle.mlp1(torch.from_numpy(run("eagle2/vit_fp32", (images - 127.5) / 127.5, patches)))
        embedded = eagle.language_model["model"].embed_tokens(ids)
        embedded = embedded.index_copy(1, engine._image_positions, seen.view(2, -1, embedded.shape[-1])).numpy()
        future = head.future_tokens.weight.expand(2, -1, -1).numpy()
        places = head.position_embedding.weight[:16].numpy()
    features = run("action_head/vlln_vl_self_attention", run("eagle2/llm_fp32", embedded, np.ones(ids.shape, np.int64)))
    state, robot = np.zeros((2, 1, 64), np.float32), np.full(2, engine.robot)
    for index, row in enumerate(rows):
        state[index, 0, : len(row.state)] = row.state
    token, actions, steps = run("action_head/state_encoder", state, robot), noise.numpy(), len(engine._moments)
    for step in range(steps):
        when = np.full(2, int(step / steps * 1000))
        tokens = run("action_head/action_encoder", actions, when, robot) + places
        out = run("action_head/DiT_fp32", np.concatenate((token, future, tokens), 1), features, when)
        actions = actions + run("action_head/action_decoder", out, robot)[:, -16:] / steps
    apart = np.abs(actions - wanted)  # random weights make much of rounding; a wrong chain is apart by about 1
    assert np.median(apart) < 5e-4 and apart.max() < 0.02


def test_the_commands_for_tensorrt_are_left(written):
    script = (written / "build_engines.sh").read_text()
    assert script.count("trtexec ") == 7 and "vl_embs:1x568x" in script and "pixel_values:2x3x224x224" in script
    assert "--onnx=eagle2/vit_fp32.onnx" in script and "attention_mask:8x600" in script


def test_in_fp16_a_module_is_near_its_torch(tiny_checkpoints, tmp_path):
    from services.gr00t.checkpoint.config import load_config
    from services.gr00t.export.__main__ import cut

    found = tiny_checkpoints("libero")
    exported, _ = cut(found, load_config(found.directory), torch.float16)
    dit = next(one for one in exported if "DiT" in one.file)
    assert dit.file == "action_head/DiT_fp16"
    row = comparison.measure(dit, comparison.export(dit, tmp_path), rounds=1)
    assert row.apart <= comparison.LIMITS[torch.float16] and row.cosine > 0.999


def test_a_module_that_differs_is_refused(tiny_checkpoints, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "compared", lambda ours, theirs: (0.5, 0.1))
    with pytest.raises(ValueError, match="vit_fp32 differs from torch by 0.5 .*at most 0.0001 in fp32"):
        main(["--checkpoint", str(tiny_checkpoints("libero").directory), "--out", str(tmp_path)])
