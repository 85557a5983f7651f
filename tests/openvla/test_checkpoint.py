"""Reading checkpoint folders: the published form, and every way in which one can be wrong."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from services.openvla.checkpoint.config import LlamaConfig, load_config
from services.openvla.checkpoint.tiny import FULL, SPECS
from services.openvla.decoding.engine import capacity
from services.openvla.model import attention
from services.openvla.model.openvla import load_model, model_shapes, weight_bytes
from services.openvla.service.settings import PREFIX, ModelSettings, checkpoint_directory
from vla_common.volume import Volume
from vla_modelkit.checkpoint import INDEX, CheckpointError, changed_files, file_hash, identity, write_record
from vla_modelkit.memory import require_memory, used_bytes
from vla_modelkit.service import from_environment
from vla_modelkit.weights import Safetensors

CPU = torch.device("cpu")


@pytest.fixture
def directory(checkpoints, tmp_path):
    """A copy of the tiny checkpoint that a test may break."""
    return shutil.copytree(checkpoints(), tmp_path / "broken")


def load(directory):
    config = load_config(directory)
    return load_model(config, Safetensors(directory), torch.float32, CPU, attention.sdpa, capacity(16))


def edit(path, **changes):
    """Sets values of a JSON file; None takes one out."""
    value = json.loads(path.read_text())
    value.update(changes)
    path.write_text(json.dumps({name: one for name, one in value.items() if one is not None}))


def test_the_published_models_shape_is_openvla_7b():
    config = FULL.model_config()
    total = sum(torch.Size(shape).numel() for shape in model_shapes(config).values())
    assert config.llama == LlamaConfig()  # what a published config.json leaves out are Llama-2 7B's values
    assert total == 7_541_237_184  # parameters of openvla/openvla-7b
    assert weight_bytes(config, torch.bfloat16) == pytest.approx(15.08e9, rel=0.001)
    assert 4.5e9 < weight_bytes(config, torch.bfloat16, "nf4") < 6e9


@pytest.mark.parametrize("size", ["tiny", "siglip"])
def test_names_and_shapes_are_those_of_the_directory(checkpoints, size):
    source = Safetensors(checkpoints(size))
    assert dict(source.shapes()) == model_shapes(SPECS[size].model_config())
    assert load_config(checkpoints(size)).towers == SPECS[size].model_config().towers


def test_a_single_file_and_older_buffers_are_read_too(directory):
    state = {}
    for shard in directory.glob("*.safetensors"):
        state |= load_file(shard)
        shard.unlink()
    (directory / INDEX).unlink()
    state["language_model.model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(16)
    save_file(state, directory / "model.safetensors")
    assert load(directory).patches == 16


ADAPTER = '{"peft_type": "LORA", "base_model_name_or_path": "openvla/openvla-7b"}'
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "b" * 64 + "\nsize 6948961960\n"
SHARD = "model-00001-of-00002.safetensors"


@pytest.mark.parametrize(
    ("removed", "written", "words"),
    [
        (SHARD, {}, f"lacks 1 of 2 weight files: {SHARD}"),
        ("README.md", {SHARD: "short"}, f"{SHARD}: it is damaged or incomplete"),
        ("README.md", {SHARD: POINTER}, "git lfs pull"),
        ("config.json", {"adapter_config.json": ADAPTER}, "LoRA adapter of openvla/openvla-7b.*--merge"),
        ("preprocessor_config.json", {}, "copy preprocessor_config.json from the checkpoint .* fine-tuned from"),
    ],
)
def test_a_file_that_is_missing_or_no_such_file_is_named(directory, removed, written, words):
    (directory / removed).unlink(missing_ok=True)
    for name, text in written.items():
        (directory / name).write_text(text)
    with pytest.raises(CheckpointError, match=words):
        load(directory)


def test_a_checkpoint_one_level_deeper_is_named(directory, tmp_path):
    outer = tmp_path / "outer"
    outer.mkdir()
    directory.rename(outer / "run")
    with pytest.raises(CheckpointError, match="give .*outer/run"):
        load_config(outer)


def test_missing_unexpected_and_misshapen_tensors_are_named(directory):
    shard = directory / "model-00001-of-00002.safetensors"
    state = load_file(shard)
    name = "language_model.model.layers.0.self_attn.q_proj.weight"
    save_file({key: value for key, value in state.items() if key != name}, shard)
    with pytest.raises(CheckpointError, match=f"lacks 1 of .*{name}"):
        load(directory)
    save_file({**state, "lora_A.weight": torch.ones(2)}, shard)
    with pytest.raises(CheckpointError, match="does not use: lora_A.weight"):
        load(directory)
    save_file({**state, name: state[name][:-1].contiguous()}, shard)
    with pytest.raises(CheckpointError, match=r"shape \[127, 128\]"):
        load(directory)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"model_type": "llava"}, "model_type 'llava'"),
        ({"use_fused_vision_backbone": False}, "openvla-v01"),
        ({"image_resize_strategy": "letterbox"}, "letterbox"),
        ({"timm_model_ids": None}, "timm_model_ids"),
        ({"image_sizes": [64, 224]}, "image_sizes"),
        ({"timm_model_ids": ["vit_nothing", "vit_tiny_patch16_224"]}, "cannot build 'vit_nothing'"),
        ({"text_config": {"model_type": "mistral"}}, "mistral"),
    ],
)
def test_a_config_of_another_model_is_refused(directory, changes, text):
    edit(directory / "config.json", **changes)
    with pytest.raises(CheckpointError, match=text):
        load(directory)


def test_statistics_come_from_the_fine_tuning_else_from_the_config(directory):
    assert "libero_goal_no_noops" in load_config(directory).norm_stats
    (directory / "dataset_statistics.json").write_text(
        json.dumps({"libero_10": {"action": {"q01": [0] * 7, "q99": [1] * 7}}})
    )
    assert list(load_config(directory).norm_stats) == ["libero_10"]
    assert load_config(directory).norm_stats["libero_10"]["mask"] == (True,) * 7
    (directory / "dataset_statistics.json").unlink()
    assert len(load_config(directory).norm_stats) == 5
    edit(directory / "config.json", norm_stats=None)
    with pytest.raises(CheckpointError, match="neither dataset_statistics.json nor norm_stats"):
        load_config(directory)


def test_the_record_tells_what_a_directory_holds(directory):
    unrecorded = identity(directory)
    write_record(directory, "owner/name", "abc", {path.name: file_hash(path) for path in directory.iterdir()})
    assert (identity(directory).repo, identity(directory).revision) == ("owner/name", "abc")
    assert identity(directory).sha256 == unrecorded.sha256
    (directory / "tokenizer.json").write_text("{}")
    assert changed_files(directory, json.loads((directory / "checkpoint.json").read_text())) == ["tokenizer.json"]
    with pytest.raises(CheckpointError, match="has changed since it was made .tokenizer.json"):
        identity(directory)


def test_a_checkpoint_is_found_by_name_or_path_and_else_listed(tmp_path, checkpoints):
    volume = Volume(tmp_path)
    with pytest.raises(CheckpointError, match="the volume has none; get one"):
        checkpoint_directory("", volume)
    shutil.copytree(checkpoints(), tmp_path / "checkpoints" / "openvla-tiny")
    assert checkpoint_directory("openvla-tiny", volume) == tmp_path / "checkpoints" / "openvla-tiny"
    assert checkpoint_directory(str(checkpoints()), volume) == checkpoints()
    with pytest.raises(CheckpointError, match="did you mean 'openvla-tiny'"):
        checkpoint_directory("openvla-tini", volume)
    with pytest.raises(CheckpointError, match="on the volume: openvla-tiny"):
        checkpoint_directory("", volume)
    with pytest.raises(CheckpointError, match="not found"):
        checkpoint_directory("../checkpoints/openvla-tiny", volume)


def test_variables_are_the_flags_defaults():
    given = {"VLALAB_OPENVLA_CHECKPOINT": "x", "VLALAB_OPENVLA_MAX_BATCH": "4", "VLALAB_OPENVLA_QUANT": "nf4"}
    settings = from_environment(
        ModelSettings, PREFIX, {**given, "VLALAB_OPENVLA_DTYPE": "", "VLALAB_OPENVLA_DRAFTS": "0"}
    )
    assert settings == ModelSettings(checkpoint="x", max_batch=4, quant="nf4", drafts=False)
    for name, text in (("QUANT", "nf5"), ("MAX_BATCH", "many"), ("DRAFTS", "maybe")):
        with pytest.raises(ValueError, match=f"VLALAB_OPENVLA_{name}='{text}'"):
            from_environment(ModelSettings, PREFIX, {f"VLALAB_OPENVLA_{name}": text})


def test_a_programs_peak_is_its_own_and_not_that_of_who_started_it():
    held = np.ones(10**9, np.uint8)  # 1 GB, which getrusage would say of the program too
    program = "import torch; from vla_modelkit.memory import used_bytes; print(used_bytes(torch.device('cpu')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 10**7 < int(done.stdout) < held.nbytes < used_bytes(CPU)


def test_too_little_memory_is_reported_before_loading():
    with pytest.raises(MemoryError, match=r"10000.6 GB and .* are free on cpu; try less"):
        require_memory(10**13, CPU, "try less")
    require_memory(1, CPU, "")
