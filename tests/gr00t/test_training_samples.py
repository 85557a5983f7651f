"""Training samples of a real data set: what they hold, where upstream pads, and which data sets are refused."""

import json
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from services.gr00t.checkpoint import tokenizer
from services.gr00t.checkpoint.directory import METADATA, find
from services.gr00t.checkpoint.embodiment import EMBODIMENT_FILE, Transform, write
from services.gr00t.data import needs
from services.gr00t.processing.prompt import Prompts
from services.gr00t.training import colours
from services.gr00t.training.__main__ import prepare
from services.gr00t.training.robot import robot_of
from services.gr00t.training.samples import Samples, collate
from services.gr00t.training.settings import Finetune
from tests import data_sets
from tests.gr00t import robots
from vla_common.volume import Volume
from vla_datasets import conversion, marks, videos
from vla_datasets.checks import Findings
from vla_datasets.frames import DECODING
from vla_datasets.lerobot import LeRobotDataset
from vla_modelkit.training.trainer import BatchIndices, order

HEAD = SimpleNamespace(horizon=16, state_dim=64, action_dim=32)


@pytest.fixture(scope="module")
def base(tiny_checkpoints):
    return tiny_checkpoints("libero")


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return robots.make(tmp_path_factory.mktemp("data") / "toy", episodes=2)


@pytest.fixture
def broken(toy, tmp_path):
    """A copy of the data set, to be damaged."""
    return shutil.copytree(toy, tmp_path / "toy")


def samples_of(directory, base, name="new_embodiment"):
    dataset = LeRobotDataset(directory)
    robot = robot_of(dataset, name, base)
    prompts = Prompts(tokenizer.load(base.directory), len(robot.embodiment.cameras), 256)
    return Samples(dataset, robot, prompts, HEAD, 224, seed=1)


@pytest.fixture(scope="module")
def samples(toy, base):
    return samples_of(toy, base)


@pytest.mark.parametrize("layout", data_sets.LINKED)
def test_a_linked_data_set_is_trained_on(toy, base, samples, tmp_path, layout):
    linked = samples_of(data_sets.linked(toy, layout, tmp_path), base)
    assert len(linked) == len(samples) and torch.equal(linked[5][0], samples[5][0])


def test_a_set_of_version_3_is_trained_on_and_needs_modality_json(toy, base, samples, tmp_path):
    new = conversion.recode(LeRobotDataset(toy), tmp_path / "new", "lerobot-v3.0")
    trained_on = samples_of(new.directory, base)
    for mine, theirs in zip(trained_on.episodes, samples.episodes, strict=True):
        assert np.array_equal(mine.states, theirs.states) and np.array_equal(mine.actions, theirs.actions)
        assert mine.prompts == theirs.prompts
    trained_on.frames.keep(trained_on.frames.bytes)
    for mine, theirs in zip(trained_on.frames.at(1, 3), samples.frames.at(1, 3), strict=True):
        assert np.abs(mine.astype(int) - theirs).mean() < 4  # encoded twice
    (new.directory / "meta/modality.json").unlink()
    with pytest.raises(ValueError, match=r"no meta/modality\.json.*write one as docs/gr00t\.md shows"):
        samples_of(new.directory, base)


def test_an_episode_without_rows_is_left_out(broken, base, tmp_path):
    data_sets.without_rows(broken)
    job = prepare(Finetune(str(broken), base=str(base.directory)), Volume(tmp_path))
    assert [episode.index for episode in job.samples.episodes] == [
        0
    ] and "1 without rows (1) are left out" in job.bad.left_out


def test_an_empty_instruction_is_refused_with_the_command_that_leaves_it_out(broken, base):
    (broken / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "go"}\n{"task_index": 1, "task": " "}\n')
    with pytest.raises(
        ValueError, match=r"instruction of episode 1 is empty.*\./lab dataset \S*/toy --bad 1"
    ) as refused:
        samples_of(broken, base)
    marks.mark(LeRobotDataset(broken), bad=[1])
    dataset = LeRobotDataset(broken)
    marks.leave_out(dataset)
    robot = robot_of(dataset, "new_embodiment", base)
    Samples(dataset, robot, Prompts(tokenizer.load(base.directory), 2, 256), HEAD, 224, seed=1)
    assert "write one" in str(refused.value)


@pytest.mark.parametrize("annotation", [{}, None])
def test_without_an_annotation_check_and_training_take_the_task_index(broken, base, samples, annotation):
    change(broken, "modality.json", lambda one: one.update(annotation=annotation))
    assert samples_of(broken, base).episodes[1].prompts == samples.episodes[1].prompts
    found = Findings(broken)
    needs.check(found, None)
    assert [one.grave for one in found.all if "no annotation" in one.message] == [False]
    assert not any(one.grave for one in found.all)


def test_another_annotation_than_the_robots_is_refused_by_check_and_training(tmp_path, base):
    directory = data_sets.lerobot(tmp_path / "goal").directory
    edit = {"human.coarse_action": {"original_key": "task_index"}}
    change(directory, "modality.json", lambda one: one.update(annotation=edit))
    found = Findings(directory)
    needs.check(found, "libero")
    words = [one.message for one in found.all if one.grave]
    assert len(words) == 1 and "modality.json has human.coarse_action" in words[0]
    with pytest.raises(ValueError, match=r"modality\.json has human\.coarse_action"):
        samples_of(directory, base, "libero")
    change(directory, "modality.json", lambda one: one.update(annotation={}))
    found = Findings(directory)
    needs.check(found, "libero")
    assert not any(one.grave for one in found.all)
    assert samples_of(directory, base, "libero").episodes[1].prompts[0] == "push the plate"


def place_of(samples, episode, step):
    number = episode * robots.LENGTH + step
    return int(np.flatnonzero(order(len(samples), 1, 0) == number)[0])


def test_every_step_comes_once_in_an_epoch_and_in_another_order_in_the_next(samples):
    first, second = (order(len(samples), 1, epoch) for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(24)) and list(first) != list(second)


def test_a_sample_holds_what_the_data_set_has(samples, toy):
    images, ids, state, actions, noise, time = samples[place_of(samples, 1, 3)]
    assert images.shape == (2, 224, 224, 3) and images.dtype == torch.uint8
    assert ids == samples.prompts.ids(robots.TASKS[1])
    stats = LeRobotDataset(toy).statistics()["observation.state"]
    raw = LeRobotDataset(toy).columns(1)["observation.state"][3]
    scaled = 2 * (raw - stats["min"]) / (stats["max"] - stats["min"]) - 1
    assert np.allclose(state[:3], scaled, atol=1e-6) and not state[3:].any() and state.dtype == np.float32
    assert actions.shape == noise.shape == (16, 32) and 0 <= time <= 1
    seen = LeRobotDataset(toy).frames(1, "observation.images.wrist", [3])[0].mean()
    assert abs(float(images[1].float().mean()) - seen) < 0.45 * seen  # brightness alone may change by 0.3


def test_behind_the_end_absolute_actions_stay_and_others_are_zero(samples, toy):
    actions = samples[place_of(samples, 0, robots.LENGTH - 2)][3]
    assert np.array_equal(actions[1:, :2], np.repeat(actions[1:2, :2], 15, 0))
    stats = LeRobotDataset(toy).statistics()["action"]
    nothing = 2 * (0 - stats["min"][2]) / (stats["max"][2] - stats["min"][2]) - 1
    assert np.allclose(actions[2:, 2], nothing) and not np.allclose(actions[1, 2], nothing)


def test_sample_depends_on_seed_and_index_only(samples, toy, base):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    again = samples_of(toy, base)
    for one, other in zip(samples[7], again[7], strict=True):
        assert np.array_equal(np.asarray(one), np.asarray(other))
    assert torch.equal(before, torch.random.get_rng_state())
    assert not np.array_equal(samples[7][4], samples[8][4])
    later = samples[7 + 24]  # of the next epoch
    assert later[0].shape == samples[7][0].shape and not np.array_equal(later[4], samples[7][4])


def test_a_batch_pads_prompts_on_the_right(samples):
    rows = [samples[place_of(samples, 0, 0)], samples[place_of(samples, 1, 0)]]
    batch = collate(rows)
    assert batch.ids.shape[1] == int(batch.lengths.max()) and batch.lengths.tolist() == [len(row[1]) for row in rows]
    assert batch.pictures.shape == (2, 2, 224, 224, 3)


def test_a_data_set_with_a_known_robots_names_is_that_robot(tmp_path, base):
    names = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
    state = {name: {"start": min(i, 2), "end": min(i, 2) + 1} for i, name in enumerate(names)}
    video = {
        "image": {"original_key": "observation.images.front"},
        "wrist_image": {"original_key": "observation.images.wrist"},
    }
    dataset = LeRobotDataset(
        robots.make(
            tmp_path / "d", 1, {**robots.MODALITY, "state": state, "action": state, "video": video, "annotation": {}}
        )
    )
    with pytest.raises(ValueError, match="state of 7 numbers .*expected 8"):
        robot_of(dataset, "new_embodiment", base)


def test_a_robot_that_the_base_was_trained_for_keeps_the_bases_scale(toy, base, tmp_path):
    """Mean and deviation where the base's embodiment.json says so; nothing states it: refused; a new robot: min-max."""
    dataset, directory = LeRobotDataset(toy), tmp_path / "base"
    new = robot_of(dataset, "new_embodiment", base)
    assert {part.normalization for part in new.layout.state} == {"min_max"}
    shutil.copytree(base.directory, directory)
    (directory / "checkpoint.json").write_text(json.dumps({"eagle": dict(base.overrides)}))
    (directory / METADATA).write_text(json.dumps({"new_embodiment": new.metadata}))
    with pytest.raises(ValueError, match="base base was trained for this robot; .*--embodiment"):
        robot_of(dataset, "new_embodiment", find(str(directory)))
    arm = {**new.embodiment.state, "arm": Transform("mean_std")}
    write(directory / EMBODIMENT_FILE, replace(new.embodiment, name="ours", state=arm))
    robot = robot_of(dataset, "new_embodiment", find(str(directory)))
    assert robot.embodiment.name == "ours"
    samples, stats = samples_of(toy, find(str(directory))), dataset.statistics()["observation.state"]
    raw = dataset.columns(1)["observation.state"][3]
    state = samples[place_of(samples, 1, 3)][2]
    assert np.allclose(state[:2], ((raw - stats["mean"]) / stats["std"])[:2], atol=1e-5)
    assert np.allclose(state[2], (2 * (raw - stats["min"]) / (stats["max"] - stats["min"]) - 1)[2], atol=1e-5)


# --- what is refused ----------------------------------------------------------------------------------------


def change(directory, name, edit):
    value = json.loads((directory / "meta" / name).read_text())
    edit(value)
    (directory / "meta" / name).write_text(json.dumps(value))


def test_another_robots_data_set_is_refused_with_what_it_has(toy, base):
    with pytest.raises(ValueError, match="robot 'so100': video webcam missing; modality.json has front, wrist"):
        samples_of(toy, base, "so100")
    with pytest.raises(ValueError, match="did you mean 'so100'"):
        samples_of(toy, base, "so10")


def test_a_known_tags_other_sizes_are_refused(broken, tiny_checkpoints):
    base = tiny_checkpoints("gr1_arms_only")
    names = {"left_arm": [0, 1], "right_arm": [1, 2], "left_hand": [2, 3], "right_hand": [0, 1]}
    parts = {name: {"start": start, "end": end} for name, (start, end) in names.items()}
    video = {"ego_view": robots.MODALITY["video"]["front"]}
    change(broken, "modality.json", lambda one: one.update(state=parts, action=parts, video=video, annotation={}))
    with pytest.raises(ValueError, match="'left_arm' of 1 numbers; tiny-gr1_arms_only was trained for gr1 with 7"):
        samples_of(broken, base, "gr1_arms_only")


def video_of(directory):
    return LeRobotDataset(directory).video_path(1, "observation.images.wrist")


def modality(kind, name, **changes):
    """Returns a function that changes a part in a data set's modality.json."""
    return lambda directory: change(directory, "modality.json", lambda one: one[kind][name].update(changes))


def stats(column, **changes):
    """Returns a function that changes a column's statistics in a data set's stats.json."""
    return lambda directory: change(directory, "stats.json", lambda one: one[column].update(changes))


def rewrite(name, text):
    """Returns a function that writes a file of a data set."""
    return lambda directory: (directory / name).write_text(text)


MARK = '{"task_index": 0, "task": "<image-1>"}\n{"task_index": 1, "task": "go"}\n'
LENGTH = '{"episode_index": 0, "tasks": [], "length": 11}\n'
SHORT = np.zeros((5, robots.SIDE, robots.SIDE, 3), np.uint8)
FAULTS = [
    (modality("video", "front", original_key="none"), "takes camera 'front' from none"),
    (modality("state", "arm", original_key="joints"), "from column joints, which the rows do not have"),
    (modality("action", "arm", end=9), r"action\[0:9\]; the column has 3 numbers"),
    (stats("action", max=[0.1] * 3), r"stats\.json: action: max\[\d\] is 0\.1; the rows' is .*--write-stats"),
    (stats("action", q01=[0.25] * 3), r"action: q01\[\d\] is 0\.25; the rows' is -0\.9.*--write-stats"),
    (rewrite("meta/tasks.jsonl", '{"task_index": 7, "task": "x"}\n'), "is 0, which meta/tasks.jsonl does not have"),
    (rewrite("meta/tasks.jsonl", MARK), "'<image-1>'"),
    (rewrite("meta/episodes.jsonl", LENGTH), "has 12 rows; meta/episodes.jsonl says 11"),
    (rewrite("meta/episodes.jsonl", ""), "no episode with a step"),
    (lambda directory: (directory / "meta/modality.json").unlink(), "no meta/modality.json"),
    (lambda directory: video_of(directory).unlink(), "is missing; expected a video"),
    (lambda directory: videos.write(video_of(directory), SHORT, robots.FPS), "has 5 frames; its episode has 12 steps"),
]


@pytest.mark.parametrize(("damage", "words"), FAULTS, ids=[words for _, words in FAULTS])
def test_invalid_data_set_raises_with_the_field(broken, base, damage, words):
    damage(broken)
    with pytest.raises(ValueError, match=words):
        samples_of(broken, base)


def test_a_wider_bound_than_the_rows_need_is_a_note(tmp_path, base):
    """As LeRobot merges sets: its q99 is the largest of the parts' and may lie far beyond the rows'."""
    values = np.arange(3 * robots.LENGTH, dtype=np.float32).reshape(3, robots.LENGTH).T
    values[5, 0] = 100
    directory = robots.make(tmp_path / "toy", 1, action=values)
    assert samples_of(directory, base).notes == []
    change(directory, "stats.json", lambda one: one["action"]["q99"].__setitem__(0, 100.0))
    (note,) = samples_of(directory, base).notes
    assert "action: q99[0] is 100; the rows' is 90.21" in note and "--write-stats" in note


def test_a_refused_data_set_comes_with_the_command_that_names_all_faults(broken, base, tmp_path):
    video_of(broken).unlink()
    settings = Finetune(str(broken), base=str(base.directory))
    with pytest.raises(
        ValueError, match=f"is missing.*\n.*./lab data gr00t --dataset {re.escape(str(broken))} --check"
    ):
        prepare(settings, Volume(tmp_path))


def test_a_nan_is_refused_with_its_row(tmp_path, base):
    values = np.zeros((robots.LENGTH, 3), np.float32)
    values[:, 0] = np.arange(robots.LENGTH)
    directory = robots.make(tmp_path / "toy", 1, action=values)
    stated = (directory / "meta/stats.json").read_text()
    values[4, 1] = np.nan
    from vla_datasets import tables

    path = LeRobotDataset(directory).data_path(0)
    columns = tables.columns(tables.read(path), path)
    tables.write(path, {**columns, "action": values})
    (directory / "meta/stats.json").write_text(stated)
    with pytest.raises(ValueError, match="episode 0 of toy, row 4: action 'arm' is not finite"):
        samples_of(directory, base)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"learning_rate": 2.0}, "learning_rate is 2.0; expected more than 0, less than 1"),
        ({"lora_rank": 4, "tune_diffusion_model": False}, "--lora-rank"),
        ({"name": "../x"}, "directory name"),
    ],
)
def test_invalid_settings_raise(changes, words):
    with pytest.raises(ValueError, match=words):
        Finetune("d", **changes)


def test_a_result_is_called_after_its_data_set():
    assert Finetune("/data/cups").output_name == "gr00t-cups"


# --- pictures -----------------------------------------------------------------------------------------------


def with_torchvision(frames, seed):
    """Returns what torchvision's own transforms, which upstream uses, make of frames uint8 [V, H, W, 3]."""
    size = tuple(int(side * 0.95) for side in frames.shape[1:3])
    resize = v2.Resize((224, 224), v2.InterpolationMode.BILINEAR, antialias=True)
    colours = v2.ColorJitter(brightness=0.3, contrast=0.4, saturation=0.5, hue=0.08)
    torch.manual_seed(seed)
    made = v2.Compose([v2.RandomCrop(size), resize, colours])(
        torch.from_numpy(frames).permute(0, 3, 1, 2).float() / 255
    )
    return (made.permute(0, 2, 3, 1) * 255).to(torch.uint8)


@pytest.mark.parametrize("size", [(256, 256), (240, 320), (64, 64), (12, 12)])
def test_images_match_torchvision_bit_for_bit(size):
    """Noise, smooth colours, grey, black and white; where greys and equal channels divide by nothing."""
    rows, columns = np.indices(size) / (np.array(size) - 1).reshape(2, 1, 1)
    smooth = np.stack([rows, columns, 1 - rows], -1) * 255
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3))
    grey = np.repeat(noise[..., :1], 3, -1)
    edges = np.where(noise > 127, 255, 0)
    frames = np.stack([smooth, noise, grey, edges]).astype(np.uint8)
    for seed in range(12):
        made = colours.changed(list(frames.transpose(0, 3, 1, 2)), 224, seed)
        assert torch.equal(made, with_torchvision(frames, seed)), seed


def test_cached_videos_change_no_sample_and_respect_the_limit(toy, base, samples):
    kept, frames = samples_of(toy, base), len(samples) * 2
    film = robots.LENGTH * robots.SIDE**2 * 3
    assert samples.frames.bytes == frames * robots.SIDE**2 * 3 == 4 * film
    assert kept.frames.keep(int(2.5 * film)) == 2 * film
    for _ in range(2):  # decoded, and from memory
        for place in range(24):
            assert torch.equal(kept[place][0], samples[place][0])


def test_cached_videos_are_shared_by_reader_processes(toy, base, samples):
    kept = samples_of(toy, base)
    kept.frames.keep(kept.frames.bytes)
    batches = list(DataLoader(kept, batch_sampler=BatchIndices(0, 3, 8), collate_fn=collate, num_workers=2))
    assert torch.equal(
        torch.cat([batch.pictures for batch in batches]), torch.stack([samples[place][0] for place in range(24)])
    )
    kept.frames.videos = None  # nothing is decoded any more
    assert all(torch.equal(kept[place][0], samples[place][0]) for place in range(24))


def test_video_being_decoded_by_another_process_is_read_directly(toy, base, samples):
    kept = samples_of(toy, base)
    kept.frames.keep(kept.frames.bytes)
    kept.frames._states = np.full(4, DECODING)
    assert torch.equal(kept[0][0], samples[0][0])
