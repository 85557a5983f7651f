"""What upstream's code and ours are both asked: observations and noise, the same on every machine."""

import numpy as np

EMBODIMENTS = ("libero", "libero_mean_std", "oxe_droid", "gr1_arms_only", "agibot_genie1", "so100")
INSTRUCTIONS = (
    "put the bowl on the stove",
    "Fasse die Tasse: nicht die weiße!",
    "it's the cup that's on top of the cabinet",
)
SIDE = 96  # pixels of the made-up cameras
PIXELS = np.s_[..., ::9, ::9]  # of what is compared, to keep the stored ones small
FEATURES = np.s_[::8]


def pictures(index: int, cameras: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Returns a picture uint8 [SIDE, SIDE, 3] for each camera: noise over a ramp."""
    draw = np.random.RandomState(100 + index)
    ramp = np.linspace(0, 255, SIDE)[:, None, None] * np.array([1.0, 0.5, 0.2])
    made = (0.5 * ramp + 0.5 * draw.randint(0, 256, (SIDE, SIDE, 3)) for _ in cameras)
    return dict(zip(cameras, (image.astype(np.uint8) for image in made), strict=True))


def state(index: int, size: int) -> np.ndarray:
    """Returns a state float32 [size]."""
    return np.random.RandomState(200 + index).uniform(-1.2, 1.2, size).astype(np.float32)


def rotation(kind: str, size: int) -> np.ndarray:
    """Returns twenty rotations float64 [20, size]; quaternions have length 1."""
    values = np.random.RandomState(0).uniform(-1.2, 1.2, (20, size))
    return values / np.linalg.norm(values, axis=-1, keepdims=True) if kind == "quaternion" else values


def noise(index: int) -> np.ndarray:
    """Returns the flow's noise float32 [1, 16, 32]."""
    return np.random.RandomState(300 + index).standard_normal((1, 16, 32)).astype(np.float32)
