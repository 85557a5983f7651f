"""Fine-tuning on the tiny checkpoint and a real data set: losses, resuming, merging, what is served afterwards."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, set_peft_model_state_dict
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from services.openvla.checkpoint import adapter, tiny
from services.openvla.checkpoint.config import load_config
from services.openvla.checkpoint.oft import CHUNK, Oft
from services.openvla.checkpoint.tokenizer import PromptTokenizer
from services.openvla.checkpoint.weights import CheckpointWeights
from services.openvla.decoding.actions import codec_of, normalise
from services.openvla.model.oft import END
from services.openvla.service.loading import load_policy
from services.openvla.service.settings import ModelSettings
from services.openvla.training import __main__ as program
from services.openvla.training import memory, network
from services.openvla.training.augmentation import Augmentation, change_colours, draw
from services.openvla.training.samples import Samples, collate, scale
from services.openvla.training.settings import OpenVLAFinetune
from tests import data_sets, forked, several
from tests.openvla.cases import INSTRUCTIONS
from vla_common.volume import Volume
from vla_contract import Observation
from vla_datasets import libero
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.loader import open_dataset
from vla_datasets.writing import Writer
from vla_evaluation.pictures.transforms import centre_crop, jpeg_round_trip, resize_lanczos3
from vla_modelkit.checkpoint import CheckpointError, read_record, record_directory, write_record
from vla_modelkit.training.machine import TrainingMachine
from vla_modelkit.training.trainer import order, states_of

CPU = TrainingMachine(torch.device("cpu"))
QUICK = {"dataset": "toy", "max_steps": 4, "batch_size": 2, "log_every": 1, "lora_rank": 4, "learning_rate": 5e-3}
HEADS = ("tokens", "l1")
DATA = Path(__file__).parent / "data" / "reference-training.npz"
# of make_training_reference.py: top, left, brightness, contrast, saturation, hue
CHANGES = ((0.5, 0.5, 0, 1, 1, 0), (0.1, 0.8, 0.15, 0.85, 1.15, 0.04), (1.0, 0.0, -0.2, 1.2, 0.8, -0.05))


class StopAfter:
    """Ctrl-C after some steps; None: never."""

    def __init__(self, steps: int | None = None):
        self.left = steps

    @property
    def requested(self) -> bool:
        if self.left is not None:
            self.left -= 1
        return self.left == 0


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    """A volume with the tiny checkpoint and a data set in both layouts."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("training")
    data_sets.lerobot(root / "datasets" / "toy", 64)
    data_sets.hdf5(root / "datasets" / "files", 64)
    tiny.write(root / "checkpoints" / "openvla-tiny", tiny.SPECS["tiny"])
    yield Volume(root)
    torch.set_num_threads(threads)


def train(volume, name, stop_after=None, **changes):
    settings = OpenVLAFinetune(**{**QUICK, "name": name, **changes})
    return program.train(settings, volume, CPU, StopAfter(stop_after))


def samples_of(volume, dataset="toy", **changes):
    base = volume.checkpoints / "openvla-tiny"
    settings = OpenVLAFinetune(**{**QUICK, **changes})
    dataset = open_dataset(volume.datasets / dataset)
    return Samples(dataset, load_config(base), PromptTokenizer(base), settings), settings


def weights(volume, name):
    source = CheckpointWeights(volume.checkpoints / name)
    return {tensor: source.read(tensor) for tensor in source.shapes()}


@pytest.fixture(scope="module", params=HEADS)
def whole(request, volume):
    """Four steps without a break: the head, and the result's name."""
    assert train(volume, f"whole-{request.param}", head=request.param)
    return request.param, f"whole-{request.param}"


def test_two_steps_and_two_more_equal_four(volume, whole):
    head, name = whole
    assert not train(volume, f"parts-{head}", stop_after=2, head=head)
    assert states_of(volume.path("runs") / "finetune" / f"parts-{head}").latest().name == "step_02.pt"
    assert train(volume, f"parts-{head}", head=head)
    expected, actual = weights(volume, name), weights(volume, f"parts-{head}")
    assert expected.keys() == actual.keys()
    assert all(torch.equal(expected[tensor], actual[tensor]) for tensor in expected)


def test_a_resumed_run_keeps_its_settings(volume, whole):
    head, name = whole
    with pytest.raises(ValueError, match="learning rate"):
        train(volume, name, head=head, learning_rate=1e-3)


def test_a_finished_run_keeps_its_result(volume, whole, capsys):
    head, name = whole
    before = (volume.checkpoints / name / "checkpoint.json").stat().st_mtime_ns
    assert train(volume, name, head=head)
    assert "all steps are done" in capsys.readouterr().out
    assert (volume.checkpoints / name / "checkpoint.json").stat().st_mtime_ns == before


def test_accumulated_passes_equal_one(volume):
    """The gradient of two passes of one sample each is that of one pass of two."""
    train(volume, "once", max_steps=2)
    train(volume, "twice", max_steps=2, batch_size=1, accumulate=2)
    assert share_of_equal_numbers(volume, "once", "twice") > 0.999


def test_two_processes_train_as_one(volume, tmp_path):
    """Under torchrun, each with half of a step's samples."""
    flags = ["--dataset=toy", "--head=l1", "--lora-rank=4", "--learning-rate=5e-3", "--max-steps=2", "--batch-size=1"]
    variables = {key: value for key, value in os.environ.items() if not key.startswith("VLALAB_")}
    variables["VLALAB_VOLUME"] = str(volume.root)
    words = ["-m", "services.openvla.training", *flags, "--name=two", "--device=cpu", "--precision=fp32"]
    assert "2 processes" in several.trained(words, tmp_path, variables, cwd=forked.ROOT)
    train(volume, "one", head="l1", max_steps=2)
    assert share_of_equal_numbers(volume, "one", "two") > 0.999
    assert (volume.checkpoints / "two" / "lora_adapter").is_dir()


def share_of_equal_numbers(volume, *runs):
    """Return it for the trained numbers of two runs: Adam divides a gradient by its size, so a few near 0 differ."""
    (_, one), (_, two) = (states_of(volume.path("runs") / "finetune" / name).load_latest() for name in runs)
    close = [torch.isclose(two["trained"][name], value, 1e-3, 1e-4).float() for name, value in one["trained"].items()]
    return torch.cat([part.flatten() for part in close]).mean()


def test_the_merged_weights_equal_base_and_adapter(volume, whole):
    """peft's own loader reads the adapter; with it on the base, the loss is that of the merged weights."""
    head, name = whole
    directory, base = volume.checkpoints / name, volume.checkpoints / "openvla-tiny"
    samples, settings = samples_of(volume, head=head)
    batch = collate([samples[0], samples[1]])
    config = load_config(base)
    adapted = network.load_trainable(config, CheckpointWeights(base), settings, CPU.device, torch.float32)
    stored = load_file(directory / "lora_adapter" / "adapter_model.safetensors")
    names = {f"base_model.model.{key.replace('.default.', '.')}": value for key, value in adapted.named_parameters()}
    assert stored.keys() == {key for key in names if "lora_" in key}
    with torch.no_grad():
        for key, value in stored.items():
            names[key].copy_(value)
        parts = CheckpointWeights(directory)
        for key, value in adapted.trained_parameters().items():
            if "lora_" not in key:
                value.copy_(parts.read(key))
    # the result is stored in the base's bfloat16, which rounds the merged weights
    merged = network.load_trainable(config, CheckpointWeights(directory), settings, CPU.device, torch.float32)
    losses = [model.eval()(*batch).item() for model in (adapted, merged)]
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)
    untouched = network.load_trainable(config, CheckpointWeights(base), settings, CPU.device, torch.float32)
    if head == "tokens":
        assert abs(untouched.eval()(*batch).item() - losses[0]) > 5 * abs(losses[0] - losses[1])


def test_the_result_is_served_and_names_its_base(volume, whole):
    head, name = whole
    policy = load_policy(ModelSettings(str(volume.checkpoints / name), device="cpu"))
    info = policy.info()
    assert (info.horizon, len(info.cameras)) == ((CHUNK, 2) if head == "l1" else (1, 1))
    assert info.profile == ("openvla-oft" if head == "l1" else "openvla")
    assert info.unnorm_keys == ("toy",)
    images = dict.fromkeys(info.cameras, np.zeros((64, 64, 3), np.uint8))
    state = np.zeros(8, np.float32) if info.needs_state else None
    (chunk,) = policy.act([Observation(images, state, "open the drawer", "a", 0)])
    assert chunk.actions.shape == (info.horizon, 7)
    record = read_record(volume.checkpoints / name)
    assert record["finetuned"]["base_sha256"]
    assert record["finetuned"]["lora_rank"] == 4
    adapter = json.loads((volume.checkpoints / name / "lora_adapter" / "adapter_config.json").read_text())
    assert adapter["r"] == 4


@pytest.mark.parametrize("head", HEADS)
def test_the_loss_falls(volume, capsys, head):
    train(volume, f"longer-{head}", head=head, max_steps=30, batch_size=4, augment=False)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in lines]
    assert losses[-1] < 0.95 * losses[0]


@pytest.mark.parametrize("head", HEADS)
def test_the_loss_equals_upstreams(head, tmp_path):
    """Upstream's loss of a batch (make_training_reference.py), to 1e-4; so do a prompt's and its actions' ids."""
    stored = np.load(DATA)
    base = tiny.write(tmp_path / "base", replace(tiny.SPECS["tiny"], oft=Oft() if head == "l1" else None))
    config, settings = load_config(base), OpenVLAFinetune("toy", head=head)
    model = network.load_trainable(config, CheckpointWeights(base), settings, CPU.device, torch.float32).eval()
    images, ids, lengths, states, actions = (
        torch.from_numpy(stored[f"{head}:{name}"]) for name in ("images", "ids", "lengths", "states", "actions")
    )
    prompt, length = PromptTokenizer(base).prompt_ids(INSTRUCTIONS[0]), int(lengths[0])
    assert ids[0, :length].tolist() == prompt
    tokens = codec_of(config).tokens(actions[0].numpy().ravel()).tolist()
    assert ids[0, length : length + len(tokens) + 1].tolist() == [*tokens, END]
    with torch.no_grad():
        assert model(images, ids, lengths, states, actions).item() == pytest.approx(stored[f"{head}:loss"], rel=1e-4)


def test_augmentation_equals_tensorflows():
    """Crop, brightness, contrast, saturation and hue, in the order of dlimp's augment_image: to a level."""
    stored = np.load(DATA)
    for image, change, expected in zip(
        stored["augmentation:images"], CHANGES, stored["augmentation:results"], strict=True
    ):
        actual = Augmentation(*change).apply(image).astype(int)
        assert np.abs(actual - expected).max() <= 1
        assert (actual == expected).mean() > 0.99


@pytest.mark.parametrize("head", HEADS)
def test_the_first_prompt_and_image_equal_those_that_are_served(volume, head):
    """Training's image with the crop in the centre is the evaluator's; so are the ids of the prompt."""
    samples, settings = samples_of(volume, "files", head=head, augment=False)
    images, ids, length, _, actions = samples[0]
    where = np.searchsorted(samples.ends, number := first_sample(samples), side="right")
    one = samples.trajectories[where]
    step = one.steps[number - (samples.ends[where - 1] if where else 0)]
    frames = [samples.frames.dataset.frames(one.index, key, [step])[0] for key in samples.frames.keys]
    served = [centre_crop(resize_lanczos3(jpeg_round_trip(frame), 64)) for frame in frames]
    cropped = [Augmentation().apply(image) for image in images]
    assert len(images) == settings.image_count
    for expected, actual in zip(served, cropped, strict=True):
        np.testing.assert_array_equal(actual, expected)
    base = volume.checkpoints / "openvla-tiny"
    assert ids[:length] == PromptTokenizer(base).prompt_ids(one.instruction)
    if head == "tokens":
        tokens = codec_of(load_config(base)).tokens(actions[0]).tolist()
        assert ids[length:] == [*tokens, 2]


def first_sample(samples):
    return int(order(len(samples), samples.settings.seed, 0)[0])


def test_both_layouts_give_the_same_numbers(volume):
    ours, theirs = (samples_of(volume, name, head="l1")[0] for name in ("toy", "files"))
    assert ours.statistics["num_transitions"] == theirs.statistics["num_transitions"]
    np.testing.assert_allclose(sorted(ours.statistics["action"]["q99"]), sorted(theirs.statistics["action"]["q99"]))


def test_steps_without_movement_are_left_out(tmp_path, volume):
    directory = tmp_path / "still"
    features, modality = libero.features(data_sets.CAMERAS, 32), libero.modality(data_sets.CAMERAS)
    writer = Writer(directory, libero.ROBOT, libero.FPS, features, modality)
    columns = data_sets.numbers(12, 0)
    columns[libero.ACTION][4:7, :6] = 0
    columns[libero.ACTION][3:7, 6] = 1
    videos = {libero.video_key(one): data_sets.pictures(12) for one in data_sets.CAMERAS}
    writer.add(columns, videos, "open the drawer")
    base = volume.checkpoints / "openvla-tiny"
    settings = OpenVLAFinetune(**{**QUICK, "dataset": str(directory)})
    samples = Samples(writer.finish(), load_config(base), PromptTokenizer(base), settings)
    assert samples.trajectories[0].steps.tolist() == [0, 1, 2, 3, 7, 8, 9, 10, 11]
    assert samples.statistics["num_transitions"] == 9


def test_scaled_actions_are_what_serving_scales_back():
    stats = {"q01": [-0.5, 0.0, 0.0], "q99": [0.5, 2.0, 1.0], "min": [-1, 0, 0], "max": [1, 2, 1]}
    stats["mask"] = [True, True, False]
    actions = np.array([[0.1, 0.5, 1.0], [-0.4, 1.9, 0.0]])
    np.testing.assert_allclose(scale(actions, stats), normalise(actions, stats), atol=1e-6)
    still = {**stats, "min": [0.1, 0, 0], "max": [0.1, 2, 1]}
    assert (scale(actions, still)[:, 0] == 0).all()


def test_colours_change_as_pillow_changes_them():
    """Saturation 0 is grey of the largest channel; a hue of a third of the circle swaps channels; none changes none."""
    image = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    pixels = image.astype(np.float32) / 255
    np.testing.assert_allclose(change_colours(pixels, 1.0, 0.0), pixels, atol=1e-6)
    np.testing.assert_allclose(change_colours(pixels, 1.0, 1 / 3), pixels[..., [2, 0, 1]], atol=1e-5)
    grey = change_colours(pixels, 0.0, 0.0)
    np.testing.assert_allclose(grey, np.repeat(pixels.max(2, keepdims=True), 3, 2), atol=1e-6)
    hsv = np.asarray(Image.fromarray(image).convert("HSV")).copy()
    hsv[..., 1] = (hsv[..., 1] * 0.8).round()
    expected = np.asarray(Image.fromarray(hsv, "HSV").convert("RGB")) / 255
    assert np.abs(change_colours(pixels, 0.8, 0.0) - expected).mean() < 0.01


def test_augmentation_depends_on_seed_and_index_alone(volume):
    samples, _ = samples_of(volume)
    again, _ = samples_of(volume)
    np.testing.assert_array_equal(samples[3][0], again[3][0])
    other, _ = samples_of(volume, seed=7)
    assert any(not np.array_equal(samples[i][0], other[i][0]) for i in range(3))
    first, second = (draw(np.random.default_rng(seed)) for seed in (1, 2))
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    assert not np.array_equal(first.apply(image), second.apply(image))


def test_a_base_of_another_kind_is_refused(volume, tmp_path):
    tiny.write(volume.checkpoints / "oft", replace(tiny.SPECS["tiny"], oft=Oft()))
    with pytest.raises(ValueError, match="--head l1"):
        train(volume, "wrong", base="oft")
    with pytest.raises(ValueError, match="--images 1 .* --images 2"):  # nothing states how many it was trained with
        train(volume, "wrong", base="oft", head="l1")
    record_directory(volume.checkpoints / "oft", "someone/oft", "local", images=1)
    with pytest.raises(ValueError, match="trained with 1 image per observation; give --images 1"):
        train(volume, "wrong", base="oft", head="l1")
    tiny.write(volume.checkpoints / "oft-tokens", replace(tiny.SPECS["tiny"], oft=Oft(False, True)))
    with pytest.raises(ValueError):
        train(volume, "wrong", base="oft-tokens", head="l1")


def test_a_set_of_another_robot_is_refused(volume, tmp_path):
    source = shutil.copytree(volume.datasets / "toy", tmp_path / "arm")
    dataset = LeRobotDataset(source)
    dataset.columns(0)[libero.ACTION] = np.zeros((12, 6), np.float32)
    base = volume.checkpoints / "openvla-tiny"
    with pytest.raises(ValueError, match=r"\[12, 6\]"):
        Samples(dataset, load_config(base), PromptTokenizer(base), OpenVLAFinetune("arm"))


def test_the_base_is_not_replaced(volume):
    with pytest.raises(ValueError, match="--name"):
        train(volume, "openvla-tiny")


def test_memory_is_estimated_within_15_percent_of_what_upstream_publishes():
    full = tiny.SPECS["full"].model_config()
    cases = [(27e9, {"batch_size": 1}), (72e9, {"batch_size": 16}), (62e9, {"head": "l1", "batch_size": 8})]
    for published, changes in cases:
        needed = memory.needed_bytes(full, OpenVLAFinetune("toy", **changes), bf16=True)
        assert needed == pytest.approx(published, rel=0.15)


def test_too_little_memory_is_refused_with_what_fits(volume, monkeypatch):
    monkeypatch.setattr(program, "free_bytes", lambda device: 40e9)
    config = tiny.SPECS["full"].model_config()
    settings = OpenVLAFinetune("toy", batch_size=16)
    machine = TrainingMachine(torch.device("cpu"), torch.bfloat16)
    with pytest.raises(MemoryError, match=r"--batch-size \d+ --accumulate \d+"):
        program.check_memory(config, settings, machine)
    program.check_memory(config, replace(settings, force=True), machine)


def test_a_damaged_result_is_not_written(volume, monkeypatch):
    monkeypatch.setattr(network.TrainableOpenVLA, "merged", lambda self: {"projector.fc1.weight": torch.tensor(np.nan)})
    with pytest.raises(ValueError, match=r"projector\.fc1\.weight"):
        train(volume, "damaged", max_steps=1)
    assert not (volume.checkpoints / "damaged").exists()


# --- merging an adapter without its model -------------------------------------------------------------------------


@pytest.fixture
def unmerged(volume, whole, tmp_path):
    """The result of four steps as upstream's training leaves it: adapter, statistics and parts, without weights."""
    source = shutil.copytree(volume.checkpoints / whole[1], tmp_path / f"unmerged-{whole[0]}")
    for name in ("config.json", "model.safetensors.index.json"):
        (source / name).unlink()
    for path in source.glob("model-*.safetensors"):
        path.unlink()
    return source


def as_published(source, trained_on):
    """Remove what only the lab's adapters state, and name a base."""
    path = source / "lora_adapter" / "adapter_model.safetensors"
    save_file(load_file(path), str(path), metadata={"format": "pt"})
    config = source / "lora_adapter" / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "base_model_name_or_path": trained_on}))
    (source / "checkpoint.json").unlink()


def test_an_adapter_merges_to_the_bits_of_its_training(volume, whole, unmerged, tmp_path):
    _, name = whole
    target = tmp_path / "merged"
    adapter.merge(unmerged, volume.checkpoints / "openvla-tiny", target)
    expected, actual = weights(volume, name), CheckpointWeights(target)
    assert expected.keys() == actual.shapes().keys()
    assert all(torch.equal(actual.read(tensor), value) for tensor, value in expected.items())
    first, second = (load_policy(ModelSettings(str(d), device="cpu")) for d in (volume.checkpoints / name, target))
    info = second.info()
    images = dict.fromkeys(info.cameras, np.full((64, 64, 3), 90, np.uint8))
    seen = Observation(images, np.zeros(8, np.float32) if info.needs_state else None, "open the drawer", "a", 0)
    np.testing.assert_array_equal(*(policy.act([seen])[0].actions for policy in (first, second)))
    record = read_record(target)
    assert record["base"]["sha256"] == record["finetuned"]["base_sha256"]


def test_a_merged_matrix_equals_pefts(volume, unmerged):
    """One layer under peft's own loader and merge_and_unload, in float32."""
    base = CheckpointWeights(volume.checkpoints / "openvla-tiny")
    ours = adapter.Adapter(unmerged)
    name = "language_model.model.layers.1.mlp.up_proj.weight"
    assert name in ours.names
    weight = base.read(name).float()
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data = weight.clone()
    nested = torch.nn.ModuleDict({"up_proj": layer})
    for part in ("mlp", "1", "layers", "model", "language_model"):
        nested = torch.nn.ModuleDict({part: nested})
    config = LoraConfig.from_pretrained(unmerged / "lora_adapter")
    config.target_modules = [name.removesuffix(".weight")]
    wrapped = PeftModel(nested, config)
    stored = load_file(unmerged / "lora_adapter" / "adapter_model.safetensors")
    set_peft_model_state_dict(wrapped, {key: value for key, value in stored.items() if ".1.mlp.up_proj." in key})
    (merged,) = wrapped.merge_and_unload().state_dict().values()
    assert not torch.equal(merged, weight)
    torch.testing.assert_close(ours.merge(name, weight), merged)


def test_an_adapter_is_not_merged_into_another_base(volume, whole, unmerged, tmp_path):
    """By the sha256 that the lab's adapters state; openvla#151: an adapter merged twice never succeeds."""
    with pytest.raises(CheckpointError, match="is not the base of .* sha256"):
        adapter.merge(unmerged, volume.checkpoints / whole[1], tmp_path / "twice")
    as_published(unmerged, "openvla/openvla-7b")
    with pytest.raises(CheckpointError, match="fine-tuned already .*dataset_statistics.json.*openvla/openvla-7b"):
        adapter.merge(unmerged, volume.checkpoints / whole[1], tmp_path / "twice")
    assert not (tmp_path / "twice").exists()


def test_a_published_adapter_is_merged_into_the_base_that_it_names(volume, unmerged, tmp_path, capsys):
    (volume.checkpoints / "openvla-tiny" / "dataset_statistics.json").rename(tmp_path / "statistics.json")
    try:
        as_published(unmerged, "/scratch/hub/models--someone--openvla-tiny/snapshots/0123")
        adapter.merge(unmerged, None, volume.checkpoints / f"{unmerged.name}-merged")
        assert "note" not in capsys.readouterr().out
        as_published_elsewhere = shutil.copytree(unmerged, tmp_path / "elsewhere")
        (as_published_elsewhere / "checkpoint.json").touch()
        as_published(as_published_elsewhere, "/data/run7/base")
        adapter.merge(as_published_elsewhere, volume.checkpoints / "openvla-tiny", tmp_path / "unnamed")
        assert "/data/run7/base; merging into openvla-tiny" in capsys.readouterr().out
        with pytest.raises(CheckpointError, match="/data/run7/base, which is not on the volume; give --base"):
            adapter.merge(as_published_elsewhere, None, volume.checkpoints / "none")
    finally:
        (tmp_path / "statistics.json").rename(volume.checkpoints / "openvla-tiny" / "dataset_statistics.json")


@pytest.mark.parametrize(
    ("trained_on", "is_base"),
    [
        ("/runs/openvla-7b+goal--image_aug--50000_chkpt", True),
        ("someone/openvla-7b+goal--image_aug--50000_chkpt", True),
        ("openvla/openvla-7b", False),
        ("/hub/models--openvla--openvla-7b/snapshots/47a0ec7f", False),
        ("/runs/another", False),
        ("", False),
    ],
)
def test_a_fine_tuned_base_is_accepted_by_its_name(unmerged, tmp_path, trained_on, is_base):
    as_published(unmerged, trained_on)
    base = tmp_path / "openvla-7b+goal--image_aug--50000_chkpt"
    base.mkdir()
    (base / "action_head--50000_checkpoint.pt").touch()
    with nullcontext() if is_base else pytest.raises(CheckpointError, match="action_head--50000"):
        adapter.check_base(adapter.Adapter(unmerged), base, "0" * 64)
    write_record(base, "openvla/openvla-7b", "main", {})
    adapter.check_base(adapter.Adapter(unmerged), base, "0" * 64)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda source: (source / "dataset_statistics.json").unlink(), "no dataset_statistics.json"),
        (lambda source: (source / "model.safetensors").touch(), "has merged weights already"),
        (lambda source: (source / "lora_adapter/adapter_model.safetensors").unlink(), "adapter_model.safetensors is"),
        (lambda source: change_adapter(source, use_dora=True), "use_dora is True"),
        (lambda source: change_tensors(source, lambda name: name.replace("up_proj", "other")), "lacks .* matrices"),
        (lambda source: change_tensors(source, lambda name: name.replace("lora_A", "lora_C")), "expected matrices"),
    ],
)
def test_what_cannot_be_merged_is_refused(volume, unmerged, tmp_path, damage, text):
    damage(unmerged)
    with pytest.raises(CheckpointError, match=text):
        adapter.merge(unmerged, volume.checkpoints / "openvla-tiny", tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def change_adapter(source, **values):
    path = source / "lora_adapter" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def change_tensors(source, rename):
    path = source / "lora_adapter" / "adapter_model.safetensors"
    with safe_open(str(path), framework="pt") as file:
        metadata = file.metadata()
    save_file({rename(name): value for name, value in load_file(path).items()}, str(path), metadata=metadata)
