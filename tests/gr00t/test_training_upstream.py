"""With Isaac-GR00T's package: a training sample, its loss, and what is kept of the robot are upstream's."""

import copy

import numpy as np
import torch

from services.gr00t.checkpoint import tokenizer
from services.gr00t.checkpoint.config import load_config
from services.gr00t.model.attention import AttentionKernel
from services.gr00t.processing.prompt import Prompts
from services.gr00t.training import network
from services.gr00t.training.robot import robot_of
from services.gr00t.training.samples import Samples, collate
from services.gr00t.training.settings import Finetune
from tests.gr00t import robots
from tests.gr00t.upstream.package import GivenNoise
from vla_datasets.lerobot import LeRobotDataset
from vla_modelkit.training.trainer import order
from vla_modelkit.weights import Safetensors

SEED, PLACES = 1, (0, 1, 5, 9)
CPU = torch.device("cpu")


def test_samples_metadata_and_loss_are_upstreams(upstream, tiny_checkpoints, tmp_path):
    found, directory = tiny_checkpoints("libero"), robots.make(tmp_path / "toy", 2)
    config, dataset = load_config(found.directory), LeRobotDataset(directory)
    robot = robot_of(dataset, "new_embodiment", found)
    prompts = Prompts(tokenizer.load(found.directory), 2, config.patches)
    samples = Samples(dataset, robot, prompts, config.head, 224, SEED)
    theirs = upstreams_data(upstream, directory, robot)
    assert theirs.metadata.model_dump(mode="json") == robot.metadata
    ours = [samples[place] for place in PLACES]
    rows = [upstreams_sample(theirs, samples, place) for place in PLACES]
    for row, one in zip(rows, ours, strict=True):
        seen = np.stack([np.asarray(image) for image in row["eagle_content"]["image_inputs"]])
        assert np.array_equal(seen, one[0].numpy())
        assert np.allclose(row["state"][0], one[2], atol=1e-6) and np.allclose(row["action"], one[3], atol=1e-6)
    same = [index for index, row in enumerate(ours) if len(row[1]) == len(ours[0][1])]  # upstream attends to padding
    batch = collate([ours[index] for index in same])
    for training in (False, True):
        loss = upstreams_loss(upstream, found, [rows[index] for index in same], batch, training)
        assert abs(loss - our_loss(config, found, prompts, batch, training)) < 1e-5


def upstreams_data(upstream, directory, robot):
    from gr00t.data.dataset import LeRobotSingleDataset

    modalities, transforms = upstream.data_config(robot.embodiment)
    return LeRobotSingleDataset(
        str(directory), modalities, "new_embodiment", video_backend="torchvision_av", transforms=transforms
    )


def upstreams_sample(theirs, samples, place):
    """Returns upstream's sample, with crop and colours drawn from the seed that ours are drawn from."""
    torch.manual_seed(int(np.random.default_rng([SEED, place]).integers(2**63)))
    return theirs[int(order(len(samples), SEED, 0)[place])]


def upstreams_loss(upstream, found, rows, batch, training):
    from gr00t.model.transforms import DefaultDataCollator, collate
    from transformers import Qwen2TokenizerFast

    policy = upstream.load_policy(
        found.directory, found.embodiment(), AttentionKernel("sdpa"), "cpu", 4, found.overrides
    )
    model, head = policy.model.float(), policy.model.action_head
    processor = copy.copy(DefaultDataCollator().eagle_processor)
    processor.tokenizer = Qwen2TokenizerFast.from_pretrained(str(found.directory), padding_side="left")
    model.eval()
    head.train(training)
    head.sample_time = lambda size, device, dtype: batch.times.to(dtype)
    torch.manual_seed(3)
    with torch.no_grad(), GivenNoise(batch.noise):
        return float(model(collate(copy.deepcopy(rows), processor))["loss"])


def our_loss(config, found, prompts, batch, training):
    settings = Finetune("toy")
    model = network.load(config, Safetensors(found.directory), 31, settings, CPU, torch.float32)
    if training:
        network.set_training(model, settings)
    torch.manual_seed(3)
    with torch.no_grad():
        return float(network.FlowLoss(model, torch.as_tensor(prompts.image_positions), 3)(*batch))
