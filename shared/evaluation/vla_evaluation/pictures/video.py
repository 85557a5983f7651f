"""Videos of episodes, rendered after the episode from its recorded simulator states.

Episodes without a video render no image for it, and rendering never slows down the policy's loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image

from vla_evaluation.benchmark import Environment
from vla_evaluation.pictures.images import upright

FRAMES_PER_S = 10  # fewer frames to render than states
HOLD_S = 0.7  # the last frame stays visible
SAMPLE = {True: 1, False: 3}  # videos per task of successes and failures in the mode "sample"


def should_render(mode: str, success: bool, rank: int) -> bool:
    """Return whether to render an episode; `rank`: the number of earlier episodes of its task and outcome."""
    if mode == "sample":
        return rank < SAMPLE[success]
    return mode == "all" or (mode == "failures" and not success)


def possible(mode: str, successes: int, failures: int) -> bool:
    """Return whether a task's next episode may get a video, after so many that succeeded and failed."""
    if mode == "sample":
        return successes < SAMPLE[True] or failures < SAMPLE[False]
    return mode != "none"


def stride(control_hz: float) -> int:
    """Return the number of steps between two frames of a video."""
    return max(1, round(control_hz / FRAMES_PER_S))


def frame_steps(steps: int, every: int) -> list[int]:
    """Return the indices of the states to render of `steps` + 1: every `every`-th and always the last."""
    selected = list(range(0, steps + 1, every))
    return selected if selected[-1] == steps else [*selected, steps]


def render_frames(
    env: Environment, camera: str, states: np.ndarray, rendered: dict[int, np.ndarray], every: int
) -> Iterator[np.ndarray]:
    """Yield uint8 [H, W, 3] frames, upright, of the episode that `env` has just run.

    `rendered`: images of the episode by step, which are not rendered again.
    """
    for step in frame_steps(len(states) - 1, every):
        if step in rendered:
            image = rendered[step]
        else:
            env.restore(states[step])
            image = env.render(camera)
        yield upright(image)


def write(video_path: Path, still_path: Path, frames: Iterable[np.ndarray], rate: Fraction) -> int:
    """Write an H.264 mp4 of `rate` frames per second that browsers play and a JPEG of its last frame.

    Both appear under their names only when they are complete. Returns the number of frames.
    """
    import av  # imported late: the evaluator and many workers write no video

    partial = video_path.with_name(f".{video_path.name}.partial")
    partial_still = still_path.with_name(f".{still_path.name}.partial")
    options = {"preset": "veryfast", "crf": "23", "threads": "1"}
    count, last = 0, None
    try:
        with av.open(str(partial), "w", format="mp4", options={"movflags": "+faststart"}) as container:
            stream = container.add_stream("libx264", rate=rate, options=options)
            stream.pix_fmt = "yuv420p"
            for last in frames:
                if count == 0:
                    stream.height, stream.width = last.shape[:2]
                container.mux(stream.encode(av.VideoFrame.from_ndarray(last, format="rgb24")))
                count += 1
            for _ in range(round(HOLD_S * rate)):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(last, format="rgb24")))
            container.mux(stream.encode())
        Image.fromarray(last).save(partial_still, format="JPEG", quality=85)
        partial_still.replace(still_path)
        partial.replace(video_path)
    finally:
        partial.unlink(missing_ok=True)
    return count
