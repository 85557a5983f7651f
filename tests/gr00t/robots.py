"""A data set as a lab makes one, for fine-tuning: two cameras, two joints and a gripper that follow what is seen."""

from pathlib import Path

import numpy as np

from vla_datasets.writing import Writer

SIDE, FPS, LENGTH = 64, 10, 12
TASKS = ("pick up the cup", "put the bowl on the stove")
FEATURES = {
    "observation.images.front": {"dtype": "video", "shape": [SIDE, SIDE, 3]},
    "observation.images.wrist": {"dtype": "video", "shape": [SIDE, SIDE, 3]},
    "observation.state": {"dtype": "float32", "shape": [3]},
    "action": {"dtype": "float32", "shape": [3]},
}
MODALITY = {
    "state": {"arm": {"start": 0, "end": 2}, "gripper": {"start": 2, "end": 3}},
    "action": {"arm": {"start": 0, "end": 2}, "gripper": {"start": 2, "end": 3, "absolute": False}},
    "video": {
        "front": {"original_key": "observation.images.front"},
        "wrist": {"original_key": "observation.images.wrist"},
    },
    "annotation": {"human.task_description": {"original_key": "task_index"}},
}


def make(directory: Path, episodes: int = 3, modality: dict = MODALITY, **changes: np.ndarray) -> Path:
    """Returns `folder` with a data set: real parquet, real H.264. changes: columns to put in place of the made-up."""
    writer = Writer(directory, "toy", FPS, FEATURES, modality)
    for index in range(episodes):
        draw = np.random.RandomState(index)
        phase = np.linspace(0, 1, LENGTH)[:, None] * np.array([1.0, 2.0, 3.0]) + index
        columns = {"observation.state": np.sin(phase), "action": np.cos(phase)} | changes
        shade = (127 + 100 * np.sin(phase[:, :1, None, None])) * np.ones((1, SIDE, SIDE, 3))
        videos = {
            key: np.clip(shade + draw.randint(0, 20, shade.shape), 0, 255).astype(np.uint8)
            for key in list(FEATURES)[:2]
        }
        writer.add({key: column.astype(np.float32) for key, column in columns.items()}, videos, TASKS[index % 2])
    writer.finish()
    return directory
