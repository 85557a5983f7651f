"""Data sets of v3.0: 10,000 frames written and read in random order, by the lab and by LeRobot's own classes.

    ./lab bench lerobot_datasets [--quick] [--options "--size 256"]

Both sides write the same episodes of one camera. LeRobot writes twice: with its own settings (AV1, images on the disk
first), and with the lab's codec settings while its frames are streamed to the encoder; the faster one counts. Both read
the lab's set, a random frame and its row at a time, as training does. LeRobot decodes with torchcodec where FFmpeg is
installed, else with PyAV, as the lab. Each writes 10,000 frames once; sides take turns episode by episode in reading.
"""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from lerobot.configs.video import RGBEncoderConfig
from lerobot.datasets.lerobot_dataset import LeRobotDataset as TheirDataset

from bench.common import figure, flags, interleaved, missed
from vla_datasets import videos
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.v3_writing import V3Writer

ENVIRONMENT = "lerobot"
EPISODES, QUICK_EPISODES, LENGTH, FPS = 50, 5, 200, 20
CAMERA, ROUND = "observation.images.front", 50  # frames read in a round
WIDTHS = {"observation.state": 8, "action": 7}
LABS_CODEC = RGBEncoderConfig(
    vcodec="h264", g=videos.GROUP, crf=int(videos.OPTIONS["crf"]), preset=videos.OPTIONS["preset"]
)
LEROBOT = {"LeRobot": {}, "LeRobot, streamed H.264": {"rgb_encoder": LABS_CODEC, "streaming_encoding": True}}


def recorded(count: int, size: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield episodes: a square that moves over a noisy ground, with a state and an action per step."""
    for index in range(count):
        draw = np.random.default_rng(index)
        images = draw.integers(100, 116, (LENGTH, size, size, 3)).astype(np.uint8)
        for step in range(LENGTH):
            at = step * size // (2 * LENGTH)
            images[step, at : at + size // 4, at : at + size // 4] = (200, index % 200, 90)
        numbers = draw.normal(size=(LENGTH, 15)).astype(np.float32)
        yield {CAMERA: images, "observation.state": numbers[:, :8], "action": numbers[:, 8:]}


def features(size: int) -> dict[str, Any]:
    """Return the features of both sides' sets."""
    names = ["height", "width", "channels"]
    numbers = {name: {"dtype": "float32", "shape": (width,), "names": None} for name, width in WIDTHS.items()}
    return {CAMERA: {"dtype": "video", "shape": (size, size, 3), "names": names}, **numbers}


def write_lab(directory: Path, episodes: Iterable[dict[str, np.ndarray]], size: int) -> None:
    """Write the episodes with the lab's writer."""
    writer = V3Writer(directory, "bench", FPS, features(size))
    for episode in episodes:
        writer.add({name: episode[name] for name in WIDTHS}, {CAMERA: episode[CAMERA]}, "pick up the cup")
    writer.finish()


def write_lerobot(directory: Path, episodes: Iterable[dict[str, np.ndarray]], size: int, **settings: object) -> None:
    """Write the episodes with LeRobot's class. settings: of its encoder."""
    dataset = TheirDataset.create("lab/bench", FPS, features(size), root=directory, **settings)
    for episode in episodes:
        for step in range(LENGTH):
            dataset.add_frame({name: of[step] for name, of in episode.items()} | {"task": "pick up the cup"})
        dataset.save_episode()
    dataset.finalize()


def read_lab(directory: Path, order: Iterable[int]) -> Callable[[], np.ndarray]:
    """Return a function that reads the next ROUND frames and actions; it returns the last frame."""
    dataset, indices = LeRobotDataset(directory), iter(order)

    def read() -> np.ndarray:
        for _ in range(ROUND):
            episode, step = divmod(next(indices), LENGTH)
            dataset.columns(episode)["action"][step]
            frame = dataset.frames(episode, CAMERA, [step])[0]
        return frame

    return read


def read_lerobot(directory: Path, order: Iterable[int]) -> Callable[[], np.ndarray]:
    """Return a function that reads the next ROUND items with LeRobot's class; it returns the last frame."""
    backend = "torchcodec"
    try:
        importlib.import_module("torchcodec.decoders")
    except (ImportError, RuntimeError):  # without FFmpeg's libraries
        backend = "pyav"
    print(f"LeRobot decodes with {backend}")
    dataset = TheirDataset("lab/bench", root=directory, video_backend=backend, return_uint8=True)
    indices = iter(order)

    def read() -> np.ndarray:
        for _ in range(ROUND):
            item = dataset[next(indices)]
        return item[CAMERA].numpy().transpose(1, 2, 0)

    return read


def main() -> int:
    """Time both sides and print the ratios."""
    parser = flags(__doc__, f"{QUICK_EPISODES * LENGTH} frames")
    parser.add_argument("--size", type=int, default=128)
    options = parser.parse_args()
    count = QUICK_EPISODES if options.quick else EPISODES
    episodes = list(recorded(count, options.size))
    with tempfile.TemporaryDirectory(prefix="vla-lab-bench-") as temporary:
        root, seconds = Path(temporary), {}
        for name, settings in {"the lab": {}, **LEROBOT}.items():
            write = write_lab if name == "the lab" else write_lerobot
            start = time.perf_counter()
            write(root / name, episodes, options.size, **settings)
            seconds[name] = time.perf_counter() - start
            megabytes = sum(path.stat().st_size for path in (root / name).rglob("*") if path.is_file()) / 1e6
            print(f"{name:24} {count * LENGTH:,} frames written in {seconds[name]:6.1f} s, {megabytes:.1f} MB")
        order = np.random.default_rng(0).permutation(count * LENGTH).tolist()
        sides = {"LeRobot": read_lerobot(root / "the lab", order), "the lab": read_lab(root / "the lab", order)}
        title = f"a frame and its row of {options.size} pixels"
        timings = interleaved(sides, len(order) // ROUND - 1, title, calls=ROUND)
    ours = seconds.pop("the lab")
    figure("lerobot_datasets_written", min(seconds.values()) / ours, "ratio", ">=1", quick=True)
    figure("lerobot_datasets_read", timings.ratio("LeRobot", "the lab"), "ratio", ">=1", quick=True)
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
