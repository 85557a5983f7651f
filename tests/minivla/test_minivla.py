"""mini-VLA on demonstrations of two dots: what it learns, that a run goes on to the bit, and what it is served as."""

import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from services.minivla import data, heads, train
from services.minivla.config import Config
from services.minivla.data import DatasetStats, Scaling, as_input, augmented, load, select_episodes
from services.minivla.model import MiniVLA
from services.minivla.policy import IMAGE_SIZE, MiniVLAPolicy, load_policy, newest
from services.ws_mdl import epochs
from tests import data_sets
from tests.running import running
from vla_common.volume import Volume
from vla_contract import Checkpoint, Observation, PolicyClient
from vla_contract.protocol.parts import Part
from vla_datasets import libero, marks, metadata, scenes
from vla_datasets.errors import DatasetError
from vla_datasets.loader import open_dataset
from vla_datasets.v3_writing import V3Writer
from vla_datasets.writing import Writer
from vla_modelkit.training.machine import TrainingMachine
from vla_modelkit.training.stopping import StopSignal
from vla_modelkit.training.weights import WeightFiles

SIZE, STEPS = 64, 12
FEW = {"epochs": 40, "looks": 80, "acts": 120, "episodes": 6, "draws": 8, "lrate": 4e-3, "batch_size": 36}
COLOURS = {"red": (255, 0, 0), "blue": (0, 0, 255)}
CAMERAS = tuple(libero.CAMERAS)


def scene(places, hand) -> np.ndarray:
    """Return a grey picture with a red and a blue dot and a white hand; places in pixels (x, y)."""
    image = np.full((SIZE, SIZE, 3), 90, np.uint8)
    for (x, y), colour in zip([*places, hand], [*COLOURS.values(), (255, 255, 255)], strict=True):
        image[max(0, y - 6) : y + 6, max(0, x - 6) : x + 6] = colour
    return image


def episode(rng: np.random.Generator, which: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pictures, states and actions of a hand that goes to one of two dots and closes there."""
    hand, places = rng.uniform(12, 52, 2), rng.uniform(12, 52, (2, 2))
    images, states, actions = [], [], []
    for _ in range(STEPS):
        delta = np.clip((places[which] - hand) / 8, -1, 1)
        images.append(scene(places.astype(int), hand.astype(int)))
        states.append([*(hand / SIZE), 0, 0, 0, 0, 0, 0])
        actions.append([*delta, 0, 0, 0, 0, float(np.abs(delta).max() > 0.3)])
        hand = hand + 6 * delta
    return np.stack(images), np.array(states, np.float32), np.array(actions, np.float32)


def write(directory, episodes: int, fps: int = 20, cameras=CAMERAS, spoil=lambda columns: None, layout=Writer):
    """Write demonstrations, the two tasks in turn."""
    writer = layout(directory, libero.ROBOT, fps, libero.features(cameras, SIZE), libero.modality(cameras))
    rng = np.random.default_rng(0)
    for number in range(episodes):
        images, states, actions = episode(rng, number % 2)
        columns = {libero.STATE: states, libero.ACTION: actions}
        spoil(columns)
        videos = {libero.video_key(camera): images for camera in cameras}
        writer.add(columns, videos, f"Go to the {list(COLOURS)[number % 2]} dot")
    writer.finish()
    return directory


@pytest.fixture(scope="module", autouse=True)
def volume_of_its_own(tmp_path_factory):
    """Decoded pictures are kept on the volume that the environment names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLALAB_VOLUME", str(tmp_path_factory.mktemp("shared")))
        yield


@pytest.fixture(scope="module")
def dots(tmp_path_factory):
    return write(tmp_path_factory.mktemp("datasets") / "dots", 16)


def config(dots, **changes) -> Config:
    usual = {"data": str(dots), "size": "tiny", "epochs": 4, "warmup": 4, "draws": 2, "chunk": 4, "ema": 0.9}
    usual |= {"head": "diffusion", "device": "cpu", "precision": "fp32", "lrate": 2e-3, "batch_size": 32}
    return Config(**usual | changes)


def weights(volume: Volume, name: str = "dots") -> dict:
    path, files = newest(volume.path("checkpoints") / "minivla", name)
    return files.load(path)


def write_scenes(directory, episodes: int, count: int = 24):
    """Write scenes: the dot that an episode's instruction names, and the other one as its place."""
    rng, of_episodes = np.random.default_rng(1), np.random.default_rng(0)
    for number in range(episodes):
        of_episodes.uniform(12, 52, 2)
        dots = of_episodes.uniform(12, 52, (2, 2))  # as in `episode`
        spots, hands = rng.uniform(12, 52, (count, 2, 2)), rng.uniform(12, 52, (count, 2))
        images = np.stack([scene(each.astype(int), hand.astype(int)) for each, hand in zip(spots, hands, strict=True)])
        named = spots[:, ::-1] if number % 2 else spots
        pixels = np.repeat(named[:, None] / SIZE * 2 - 1, len(CAMERAS), 1).astype(np.float32)
        pixels[:, 1, 1] = np.nan  # the second camera does not see the place
        arrays = {
            "instruction": np.array(f"Go to the {list(COLOURS)[number % 2]} dot"),
            "cameras": np.array(CAMERAS),
            "images": np.repeat(images[:, None], len(CAMERAS), 1),
            "state": np.pad(hands / SIZE, ((0, 0), (0, 6))).astype(np.float32),
            "places": np.pad(named / SIZE, ((0, 0), (0, 0), (0, 1))).astype(np.float32),
            "pixels": pixels,
            "steps": np.tile(np.pad(dots[:: 1 - number % 2 * 2] / SIZE, ((0, 0), (0, 1))), (STEPS, 1, 1)).astype("f4"),
        }
        scenes.write(directory, number, arrays)


@pytest.fixture(scope="module")
def seen_dots(tmp_path_factory):
    directory = write(tmp_path_factory.mktemp("datasets") / "dots", 16)
    write_scenes(directory, 16)
    return directory


@pytest.fixture(scope="module")
def trained(seen_dots, tmp_path_factory) -> Volume:
    volume = Volume(tmp_path_factory.mktemp("volume"))
    assert train.train_model(config(seen_dots, **FEW, save_every=1000), volume)
    return volume


# --- data ----------------------------------------------------------------------------------------------------


def test_a_chunk_ends_with_its_episode(dots):
    loaded = load(config(dots))
    index = torch.tensor([0, STEPS - 2, STEPS])
    actions, real = loaded.chunks(index, 4)
    assert real.tolist() == [[True] * 4, [True, True, False, False], [True] * 4]
    assert torch.equal(actions[0], loaded.action[:4]) and torch.equal(actions[1, 3], loaded.action[STEPS - 1])


def test_what_is_loaded_is_what_was_written(dots):
    loaded = load(config(dots))
    rng = np.random.default_rng(0)
    first = [episode(rng, number % 2) for number in range(2)]
    assert loaded.images.shape == (16 * STEPS, 2, 3, SIZE, SIZE) and loaded.images.dtype == torch.uint8
    action = loaded.learned.action.undo(loaded.action[STEPS : 2 * STEPS]).numpy()
    assert np.allclose(action, first[1][2], atol=1e-5)
    assert np.allclose(loaded.learned.state.undo(loaded.state[:STEPS]).numpy(), first[0][1], atol=1e-5)
    far = loaded.images[:STEPS, 0].permute(0, 2, 3, 1).int() - torch.from_numpy(first[0][0]).int()
    assert far.abs().float().mean() < 12  # what H.264's halved colours cost
    assert loaded.instructions.shape[0] == 2 and not torch.equal(loaded.instructions[0], loaded.instructions[1])
    assert loaded.task.tolist() == [number % 2 for number in range(16) for _ in range(STEPS)]


def test_a_set_of_version_3_is_loaded_as_one_of_version_2(dots, tmp_path):
    new, old = load(config(write(tmp_path / "dots", 16, layout=V3Writer))), load(config(dots))
    assert (tmp_path / "dots/meta/tasks.parquet").exists() and torch.equal(new.images, old.images)
    assert torch.equal(new.action, old.action) and torch.equal(new.instructions, old.instructions)


@pytest.mark.parametrize("layout", data_sets.LINKED)
def test_a_linked_set_is_loaded(dots, tmp_path, layout):
    linked, plain = load(config(data_sets.linked(dots, layout, tmp_path))), load(config(dots))
    assert torch.equal(linked.images, plain.images) and torch.equal(linked.action, plain.action)


def test_scales_are_the_rows_whatever_stats_json_says(tmp_path):
    directory = write(tmp_path / "dots", 2)
    before = load(config(directory)).learned
    path = directory / "meta/stats.json"
    stated = json.loads(path.read_text())
    path.write_text(json.dumps({key: dict.fromkeys(of, [9.0] * len(of["min"])) for key, of in stated.items()}))
    after = load(config(directory)).learned
    assert (after.action, after.state) == (before.action, before.state)


def test_numbers_that_never_change_are_0_and_come_back():
    x = np.array([[0.0, 5.0], [2.0, 5.0]], np.float32)
    scaling = Scaling.of_range(x)
    assert scaling(torch.from_numpy(x)).tolist() == [[-1, 0], [1, 0]]
    assert torch.equal(scaling.undo(scaling(torch.from_numpy(x))), torch.from_numpy(x))


def test_what_is_marked_as_bad_is_left_out_and_said(tmp_path):
    directory = write(tmp_path / "dots", 4)
    bad = marks.mark(open_dataset(directory), bad=[1])
    loaded = load(config(directory, episodes=3))
    assert len(loaded) == 3 * STEPS and loaded.learned.demonstrations == 3
    assert (loaded.learned.left_out, loaded.learned.marks) == (1, bad.digest)
    assert loaded.learned == DatasetStats.of(loaded.learned.stored())
    with pytest.raises(DatasetError, match="--episodes 4 exceeds the data set's 3"):
        load(config(directory, episodes=4))


def test_an_episode_without_rows_is_left_out_and_said(tmp_path, capsys):
    directory = data_sets.without_rows(write(tmp_path / "dots", 4))
    loaded = load(config(directory))
    assert len(loaded) == 3 * STEPS and loaded.left_out == "1 without rows (1) are left out"
    marks.mark(open_dataset(directory), bad=[2])
    assert load(config(directory)).left_out == "1 marked as bad and 1 without rows (1) are left out"
    train.train_model(config(directory, epochs=1), Volume(tmp_path / "volume"))
    assert "(1 marked as bad and 1 without rows (1) are left out)" in capsys.readouterr().out


@pytest.mark.parametrize("tasks", [[""], ["  "], []])
def test_an_empty_instruction_is_refused_before_training(tmp_path, tasks):
    directory = write(tmp_path / "dots", 6)
    path = directory / metadata.EPISODES
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for number in (1, 3, 4):
        rows[number]["tasks"] = tasks
    metadata.write_lines(path, rows)
    with pytest.raises(DatasetError, match=r"instruction of episode 1,3-4 is empty.* --bad 1,3-4$"):
        train.train_model(config(directory), Volume(tmp_path / "volume"))
    marks.mark(open_dataset(directory), bad=[1, 3, 4])
    assert load(config(directory)).learned.demonstrations == 3


def test_fewer_episodes_are_as_many_of_each_task(dots):
    loaded = data.open_dataset(dots)
    some = select_episodes(loaded.episodes, 5)
    assert [one.index for one in some] == [0, 1, 2, 3, 4] and len(select_episodes(loaded.episodes, 0)) == 16
    with pytest.raises(DatasetError, match="--episodes 17 exceeds the data set's 16"):
        select_episodes(loaded.episodes, 17)


def test_images_are_shifted_and_nothing_else_is_lost():
    image = torch.arange(2 * 3 * SIZE * SIZE).reshape(1, 2, 3, SIZE, SIZE).remainder(256).to(torch.uint8)
    seen = augmented(image.expand(8, -1, -1, -1, -1), torch.Generator().manual_seed(0))
    assert seen.shape == (8, 2, 3, SIZE, SIZE) and seen.min() >= -1 and seen.max() <= 1
    assert len({one.numpy().tobytes() for one in seen}) > 1
    again = augmented(image.expand(8, -1, -1, -1, -1), torch.Generator().manual_seed(0))
    assert torch.equal(seen, again)
    assert as_input(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [-1, 1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fps": 10}, "10 steps per second.* LIBERO's 20"),
        ({"cameras": CAMERAS[:1]}, "observation.images.wrist_image"),
        ({"spoil": lambda columns: columns[libero.ACTION].__setitem__((3, 0), np.nan)}, "action contains NaN"),
    ],
)
def test_data_of_another_kind_is_refused_in_words(tmp_path, changes, words):
    with pytest.raises(DatasetError, match=words):
        load(config(write(tmp_path / "other", 2, **changes)))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({libero.ACTION: 6}, r"observation.state is missing; expected LIBERO's \[8\] numbers"),
        ({libero.STATE: 8, libero.ACTION: 6}, r"action is \[6\]; expected LIBERO's \[7\] numbers"),
    ],
)
def test_a_robot_with_other_numbers_is_refused(tmp_path, sizes, words):
    features = {name: {"dtype": "float32", "shape": [size]} for name, size in sizes.items()}
    writer = Writer(tmp_path / "arm", libero.ROBOT, 20, features)
    writer.add({name: np.zeros((4, size), np.float32) for name, size in sizes.items()}, {}, "wave")
    writer.finish()
    with pytest.raises(DatasetError, match=words):
        load(config(tmp_path / "arm"))


def another_benchmark(directory, **told):
    """Write a set of a robot with two numbers to an action and one camera, which says of itself what they are."""
    move = Part("position delta", 1, "0.01 m", "world frame", -1, 1)
    grip, place = Part("gripper", 1, "1", "-1 opens, 1 closes", -1, 1), Part("position", 3, "m", "world frame")
    source = {"benchmark": "Other", "rate_hz": 80, "cameras": {"observation.image": "above"}}
    source |= {"action": [asdict(move), asdict(grip)], "state": [asdict(place)], **told}
    features = {"observation.image": {"dtype": "video", "shape": [SIZE, SIZE, 3]}}
    features |= {
        name: {"dtype": "float32", "shape": [size]} for name, size in (("observation.state", 3), ("action", 2))
    }
    writer, rng = Writer(directory, "arm", 80, features, {}, source), np.random.default_rng(0)
    columns = {
        "observation.state": rng.random((6, 3)).astype(np.float32),
        "action": rng.random((6, 2)).astype(np.float32),
    }
    writer.add(columns, {"observation.image": np.full((6, SIZE, SIZE, 3), 90, np.uint8)}, "push")
    writer.finish()
    return directory, (move, grip), (place,)


def test_a_set_of_another_benchmark_says_what_its_numbers_are(tmp_path):
    directory, action, state = another_benchmark(tmp_path / "other")
    loaded = load(config(directory))
    assert loaded.images.shape == (6, 1, 3, SIZE, SIZE) and loaded.action.shape == (6, 2)
    learned = data.DatasetStats.of(json.loads(json.dumps(loaded.learned.stored())))
    assert (learned.action_parts, learned.state_parts, learned.cameras) == (action, state, ("above",))
    shape = train.shape_of(config(directory), learned, 10, False)
    served = MiniVLAPolicy(MiniVLA(shape), config(directory), learned, Checkpoint("m", "0"))
    assert (served.info().action, served.info().state, served.info().cameras) == (action, state, ("above",))
    (chunk,) = served.act([served.example()])
    assert chunk.actions.shape == (config(directory).chunk, 2) and np.abs(chunk.actions[:, 1]).max() <= 1
    with pytest.raises(DatasetError, match="--set cameras=front"):
        load(config(directory, cameras="wrist"))


def test_a_set_that_does_not_say_it_is_refused(tmp_path):
    directory, *_ = another_benchmark(tmp_path / "silent", action=[{"name": "x"}])
    with pytest.raises(DatasetError, match="meta/source.json"):
        load(config(directory))


# --- heads ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", heads.HEADS)
def test_a_head_that_predicts_rightly_gives_the_chunk(name):
    """With the true answer in place of the network, sampling ends at the chunk that training asks for."""
    head, chunk = heads.HEADS[name](), torch.rand(3, 4, 7) * 2 - 1
    noise = torch.randn(3, 4, 7)

    def right(x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        if name == "diffusion":
            ab = head.schedule.ab_t[(time * heads.TIMESTEPS).round().long()][:, None, None]
            return (x - ab.sqrt() * chunk) / (1 - ab).sqrt()
        return noise - chunk if name == "flow" else chunk

    assert torch.allclose(head.sample(right, noise, 10), chunk, atol=2e-3)


def test_training_pairs_hold_the_chunk_and_the_noise():
    chunk, noise = torch.rand(5, 4, 7), torch.randn(5, 4, 7)
    draw = torch.tensor([0.0, 0.25, 0.5, 0.75, 0.999])
    x, time, wanted = heads.Flow().training_pair(chunk, noise, draw)
    assert torch.allclose(x - time[:, None, None] * wanted, chunk, atol=1e-5)
    x, time, wanted = heads.Diffusion().training_pair(chunk, noise, draw)
    assert torch.equal(wanted, noise) and time.min() > 0 and time.max() == 1
    assert not heads.Regression().training_pair(chunk, noise, draw)[0].any()


# --- training ------------------------------------------------------------------------------------------------


class StopAfter(StopSignal):
    """Asks to stop after some batches."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    @property
    def requested(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize("stop", [3, 9, 12])  # while it learns to see, while it learns to act, in between
def test_a_run_that_is_stopped_anywhere_continues_to_the_bit(seen_dots, stop):
    whole = config(seen_dots, looks=2, epochs=2)
    machine, loaded = TrainingMachine(torch.device("cpu")), load(whole)
    straight = train.get_training(whole, machine, loaded)
    for _ in range(4):
        assert epochs.train_epoch(straight, StopAfter(10**6))
    broken = train.get_training(whole, machine, loaded)
    signal = StopAfter(stop)
    while not signal.requested:
        signal.left += 1
        epochs.train_epoch(broken, signal)
    resumed = train.get_training(whole, machine, loaded)
    train.restore(resumed, epochs.state_of(broken), "here")
    while resumed.epoch < 4:
        epochs.train_epoch(resumed, StopAfter(10**6))
    ours, theirs = resumed.averaged.state_dict(), straight.averaged.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert resumed.global_step == straight.global_step


def test_as_many_epochs_as_the_minutes_hold_and_a_run_that_continues_keeps_them(dots, tmp_path, capsys):
    volume, asked = Volume(tmp_path), {"episodes": 2, "draws": 1}
    assert train.train_model(config(dots, **asked, minutes=0.005, save_every=1), volume)
    epochs = weights(volume)["epoch"]
    assert weights(volume)["config"]["epochs"] == epochs
    capsys.readouterr()
    assert epochs >= 1 and train.train_model(config(dots, **asked, minutes=0.005), volume)
    assert f"{epochs} epoch" in capsys.readouterr().out and weights(volume)["epoch"] == epochs
    with pytest.raises(ValueError, match="minutes 0.005.*minutes 9"):
        train.train_model(config(dots, **asked, minutes=9), volume)


def test_of_many_minutes_no_more_are_used_than_its_epochs_take(dots, tmp_path, capsys):
    volume = Volume(tmp_path)
    assert train.train_model(config(dots, episodes=2, draws=1, minutes=9, epochs=2), volume)
    assert "2 epochs in at most 9 minutes" in capsys.readouterr().out
    assert weights(volume)["epoch"] == weights(volume)["config"]["epochs"] == 2


def test_it_says_whose_demonstrations_it_learned_from_and_which_seeds(tmp_path):
    episodes = [
        {"task": 0, "episode": n, "seed": seed, "success": True, "steps": STEPS} for n, seed in enumerate((9, 5, 7))
    ]
    source = {"benchmark": "LIBERO", "suite": "libero_goal", "policy": "oracle", "assets": {"kind": "kit"}}
    source |= {"starts": "drawn", "noise": 0.2, "episodes": episodes}
    directory = write(tmp_path / "said", 3)
    (directory / "meta" / "source.json").write_text(json.dumps(source))
    said = "oracle on libero_goal, starts drawn, seeds {}, noise 0.2, assets kit"
    assert load(config(directory)).learned.source == said.format("5 to 9")
    assert load(config(directory, episodes=2)).learned.source == said.format("5 to 9")
    of_a_run = {**source, "starts": "evaluation", "noise": 0.0}
    assert data.describe_source(of_a_run, [0]) == "oracle on libero_goal, starts evaluation, assets kit"
    assert data.describe_source(source, [2]) == said.format("7 to 7") and data.describe_source({}, [0]) == ""


def test_a_pace_that_was_guessed_in_a_busy_moment_is_put_right_while_it_trains(dots, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "epochs_that_fit", lambda config, *_: replace(config, epochs=1))
    monkeypatch.setattr(train.TimeBudget, "adjusted", lambda self, run: replace(run.config, epochs=3))
    asked, volume = {"episodes": 2, "draws": 1, "minutes": 9}, Volume(tmp_path)
    assert train.train_model(config(dots, **asked), volume)
    assert weights(volume)["epoch"] == weights(volume)["config"]["epochs"] == 3
    monkeypatch.setattr(
        train.TimeBudget, "adjusted", lambda self, run: pytest.fail("a run that goes on keeps its number")
    )
    assert train.train_model(config(dots, **asked), volume)


def test_epochs_are_reckoned_by_the_pace_so_far_and_stay_after_a_quarter_of_the_minutes(dots, monkeypatch):
    settings = config(dots, episodes=2, minutes=1)
    run = train.get_training(settings, TrainingMachine(torch.device("cpu")), load(settings))
    for times, known in (
        ((12, 14, 15, 16), [5, 8, 12, 12]),
        ((30, 31, 32, 33), [2, 2, 2, 2]),
        ((99, 111), [1, 1]),
        ((1, 2), [20, 20]),
    ):
        clock = iter((0, *times))
        monkeypatch.setattr(train, "time", SimpleNamespace(monotonic=lambda clock=clock: next(clock)))
        run.config, run.minutes = settings, train.TimeBudget(replace(settings, epochs=20))
        reckoned = []
        for run.epoch in range(1, len(times) + 1):
            run.on_epoch_end()
            reckoned.append(run.config.epochs)
        assert reckoned == known


def looked(run, loaded) -> float:
    """Return how far the found places are from the true ones, as a mean over the scenes, in images' widths."""
    of, words = loaded.scenes, loaded.instructions[loaded.scenes.task]
    with torch.inference_mode():
        looks = run.nn_model.look(as_input(of.images), words, loaded.pad, of.state)
    scale = torch.tensor(loaded.learned.state.scale[:3])
    return float(((looks.places - of.places) * scale)[..., :2].norm(dim=-1).mean())


def test_it_learns_from_scenes_where_things_are_and_then_to_act_on_what_it_sees(seen_dots):
    settings = config(seen_dots, looks=40, acts=1, head="regression", lrate=4e-3)
    loaded = load(settings)
    assert len(loaded.scenes) == 16 * 24 and loaded.scenes.pixels[:, 1, 1].isnan().all()
    run = train.get_training(settings, TrainingMachine(torch.device("cpu")), loaded)
    before, eyes = looked(run, loaded), run.nn_model.eyesight()
    while not run.sees:
        epochs.train_epoch(run, StopAfter(10**6))
    assert run.epoch == 40 and run.epochs == 41 and looked(run, loaded) < 0.5 * before
    action_out = run.nn_model.action_out.weight.clone()
    epochs.train_epoch(run, StopAfter(10**6))
    assert all(torch.equal(now, fixed) for now, fixed in zip(eyes, run.averaged.eyesight(), strict=True))
    assert not torch.equal(run.nn_model.action_out.weight, action_out)


def test_a_set_of_scenes_and_numbers_needs_no_videos(seen_dots, tmp_path):
    directory = write(tmp_path / "dots", 16, cameras=())
    with pytest.raises(DatasetError, match="no camera observation.images.image"):
        load(config(directory))
    write_scenes(directory, 16)
    filmed, bare = load(config(seen_dots)), load(config(directory))
    assert bare.images.shape[1] == 0 and bare.learned == filmed.learned
    assert torch.equal(bare.scenes.steps, filmed.scenes.steps)
    assert torch.equal(bare.scenes.images, filmed.scenes.images)
    assert load(config(directory, pictures=False)).scenes is None
    with pytest.raises(DatasetError, match="no camera observation.images.image"):
        load(config(directory, looks=0))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda arrays: arrays.pop("steps"), "have no steps; make the data set again: ./lab dataset"),
        (lambda arrays: arrays.update(cameras=np.array(CAMERAS[:1])), f"have no {CAMERAS[1]}; make"),
        (lambda arrays: arrays.update(steps=arrays["steps"][1:]), f"have {STEPS - 1} steps, not {STEPS}; make"),
    ],
)
def test_scenes_of_an_earlier_version_or_of_other_cameras_are_refused(tmp_path, spoil, words):
    directory = write(tmp_path / "dots", 2)
    write_scenes(directory, 2)
    arrays = next(iter(scenes.read(directory, [1])))
    spoil(arrays)
    scenes.write(directory, 1, arrays)
    with pytest.raises(DatasetError, match=f"episode 1 {words}"):
        load(config(directory))


def test_a_damaged_file_of_scenes_is_named(tmp_path):
    directory = write(tmp_path / "dots", 2)
    write_scenes(directory, 2)
    (directory / "scenes" / "000001.npz").write_bytes(b"PK")
    with pytest.raises(DatasetError, match=r"000001\.npz cannot be read"):
        load(config(directory))


def test_rare_words_stay_more_often_than_common_ones(dots):
    loaded = load(config(dots))
    words = loaded.instructions[:1].expand(2000, -1)
    heard = data.muffled(words, loaded.pad, 0, loaded.common, torch.Generator().manual_seed(0))
    kept = {int(word): float((heard == word).any(1).float().mean()) for word in words[0]}
    assert len(kept) == 5 and sorted(kept.values())[-1] == kept[int(words[0, 3])] > 0.7
    assert max(sorted(kept.values())[:-1]) < 0.6
    assert bool(((heard == loaded.pad).int().diff(dim=1) >= 0).all())  # padding stays at the end


@pytest.mark.parametrize("without", ["words", "pictures"])
def test_a_network_can_be_built_deaf_or_blind_to_compare_with(dots, without):
    loaded = load(config(dots))
    run = train.get_training(config(dots, **{without: False}), TrainingMachine(torch.device("cpu")), loaded)
    train.train_step(run, torch.arange(8))
    network = run.nn_model.eval()
    seen = as_input(torch.stack([loaded.images[0], loaded.images[0], loaded.images[5 * STEPS]]))
    words = loaded.instructions[[0, 1, 0]]
    with torch.inference_mode():
        memory = network.observe(seen, words, loaded.pad, loaded.state[[0, 0, 0]])
        same, told, shown = network.denoise(torch.zeros(3, 4, 7), torch.ones(3), memory)
    assert torch.allclose(same, told, atol=1e-5) == (without == "words")
    assert torch.allclose(same, shown, atol=1e-5) == (without == "pictures")


def test_two_processes_take_the_step_of_one(dots):
    """Their shares of a batch add up to its loss and its gradient."""
    loaded = load(config(dots))
    index = torch.arange(8)

    def part(rank: int, world: int):
        run = train.get_training(config(dots), TrainingMachine(torch.device("cpu"), None, rank, world), loaded)
        loss = train.loss_of(run, index)
        loss.backward()
        return loss.detach(), [p.grad for p in run.nn_model.parameters()]

    whole, halves = part(0, 1), [part(rank, 2) for rank in range(2)]
    assert torch.allclose(halves[0][0] + halves[1][0], whole[0], rtol=1e-5)
    for grad, first, second in zip(whole[1], halves[0][1], halves[1][1], strict=True):
        assert torch.allclose(first + second, grad, atol=1e-5)


def test_other_settings_and_other_data_are_refused(seen_dots, trained, tmp_path):
    with pytest.raises(ValueError, match="chunk 4.*chunk 8"):
        train.train_model(config(seen_dots, **FEW, chunk=8), trained)
    with pytest.raises(ValueError, match="size tiny.*size small.* --name"):
        train.train_model(config(seen_dots, **FEW, size="small"), trained)
    other = write(tmp_path / "dots", 6, spoil=lambda columns: columns[libero.STATE].__iadd__(1))
    with pytest.raises(ValueError, match="trained on dots"):
        train.train_model(config(other, **FEW), trained)


# --- served --------------------------------------------------------------------------------------------------


def errors(policy, blind: bool = False, deaf: bool = False) -> float:
    """Return how far its first two numbers are from the demonstrator's, as a mean over the demonstrations."""
    rng, wrong = np.random.default_rng(0), []
    for number in range(6):
        images, states, actions = episode(rng, number % 2)
        for step in range(0, STEPS - 4, 2):
            image = np.zeros_like(images[step]) if blind else images[step]
            large = image.repeat(IMAGE_SIZE // SIZE, 0).repeat(IMAGE_SIZE // SIZE, 1)
            told = f"Go to the {list(COLOURS)[(number + deaf) % 2]} dot"
            [chunk] = policy.act([Observation(dict.fromkeys(CAMERAS, large), states[step], told, f"s{number}", step)])
            wrong.append(np.abs(chunk.actions[0, :2] - actions[step, :2]).mean())
    return float(np.mean(wrong))


@pytest.fixture(scope="module")
def policy(trained):
    return load_policy(*newest(trained.path("checkpoints") / "minivla", ""), "cpu", 5, 4, 0)


def test_it_learns_from_the_images_and_the_words(policy):
    """Where it was shown what to do it does that; in the dark, or told the other dot, it does not."""
    seeing = errors(policy)
    assert seeing < 0.8 * errors(policy, blind=True) and seeing < 0.8 * errors(policy, deaf=True)


def test_it_can_be_told_something_else_to_see_whether_it_listens(trained):
    loaded = newest(trained.path("checkpoints") / "minivla", "")
    plain, told = load_policy(*loaded, "cpu", 5, 4, 0), load_policy(*loaded, "cpu", 5, 4, 0, "go to the blue dot")
    sent = replace(plain.example(120), instruction="Go to the red dot")
    meant = replace(sent, instruction="Go to the blue dot")
    heard, tokens = told.observe([sent]).tokens, plain.observe([meant]).tokens
    assert torch.equal(heard, tokens) and not torch.equal(heard, plain.observe([sent]).tokens)
    assert told.info().details["told"] == "go to the blue dot" and "told" not in plain.info().details


def test_an_answer_depends_on_the_observation_alone(policy):
    scenes = [policy.example(level) for level in (0, 120)]
    scenes[1] = replace(scenes[1], session="other", instruction="go to the blue dot")
    together, alone = policy.act(scenes), [policy.act([one])[0] for one in scenes]
    assert set(np.concatenate([chunk.actions[:, -1] for chunk in alone])) <= {0.0, 0.5, 1.0}  # open, closed, unchanged
    for one, other in zip(together, alone, strict=True):
        assert np.allclose(one.actions, other.actions, atol=1e-4)
    assert not np.allclose(alone[0].actions, alone[1].actions, atol=1e-3)
    assert policy.act([replace(scenes[0], step=8)])[0].actions.tolist() != alone[0].actions.tolist()


def test_it_is_served_and_says_what_it_learned_from(policy):
    with running(policy) as service, PolicyClient(service.url) as client:
        info = client.info()
        assert (info.name, info.profile, info.horizon, info.cameras) == ("minivla", "minivla", 4, CAMERAS)
        assert info.details["data"] == "dots" and info.details["demonstrations"] == "6"
        assert info.checkpoint.repo == "minivla/dots" and info.details["denoising_steps"] == "5"
        image = np.zeros((IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8)
        chunk = client.act(Observation(dict.fromkeys(CAMERAS, image), np.zeros(8, np.float32), "go", "s", 0))
        assert chunk.actions.shape == (4, 7) and 0 <= chunk.actions[:, 6].min() <= chunk.actions[:, 6].max() <= 1


def test_without_a_trained_one_it_says_how_to_get_one(tmp_path):
    with pytest.raises(ValueError, match=r"./lab train minivla --data NAME"):
        newest(tmp_path, "")
    (tmp_path / "goal").mkdir()
    with pytest.raises(ValueError, match=r"'gaol' not found; known: goal"):
        newest(tmp_path, "gaol")


def test_weights_of_another_lab_are_refused(tmp_path):
    files = WeightFiles(tmp_path / "unet", train.PREFIX)
    files.directory.mkdir()
    files.save(files.path(0), {"model_state_dict": {}, "epoch": 1, "global_step": 1})
    with pytest.raises(ValueError, match="unet.* ./lab train minivla"):
        load_policy(files.path(0), files, "cpu", 5, 4, 0)
