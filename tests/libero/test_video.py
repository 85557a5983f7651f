"""Videos: which episodes get one, which frames are drawn, and that players can read them."""

from fractions import Fraction
from itertools import pairwise

import av
import numpy as np
import pytest
from PIL import Image

from vla_evaluation.pictures import video


@pytest.mark.parametrize(
    ("mode", "success", "shown", "expected"),
    [
        ("all", True, 99, True), ("failures", True, 0, False), ("failures", False, 99, True), ("none", False, 0, False),
        ("sample", True, 0, True), ("sample", True, 1, False), ("sample", False, 2, True), ("sample", False, 3, False),
    ],
)  # fmt: skip
def test_episodes_with_video(mode, success, shown, expected):
    assert video.should_render(mode, success, shown) is expected


@pytest.mark.parametrize("steps", [0, 1, 2, 7, 8])
def test_every_second_state_and_always_the_last(steps):
    chosen = video.frame_steps(steps, video.stride(20))
    assert chosen[0] == 0 and chosen[-1] == steps
    assert all(b - a <= 2 for a, b in pairwise(chosen))


class PaintingEnv:
    """Sample the state as a grey level, with a white bottom row as MuJoCo's first row."""

    def __init__(self):
        self.drawn = 0

    def restore(self, state):
        self.level = int(state[0])

    def render(self, camera):
        self.drawn += 1
        image = np.full((64, 64, 3), self.level, np.uint8)
        image[:8] = 255
        return image


def test_frames_are_upright_and_episode_images_are_reused():
    env, states = PaintingEnv(), np.arange(9.0)[:, None] * 10
    already = np.full((64, 64, 3), 77, np.uint8)
    frames = list(video.render_frames(env, "any", states, {4: already}, 2))
    assert [int(frame[0, 0, 0]) for frame in frames] == [0, 20, 77, 60, 80]
    assert (frames[0][-8:] == 255).all()
    assert env.drawn == 4


def test_a_video_plays_in_browsers_and_has_a_still_of_its_end(tmp_path):
    frames = [np.full((256, 256, 3), level, np.uint8) for level in range(0, 200, 10)]
    count = video.write(tmp_path / "v.mp4", tmp_path / "v.jpg", iter(frames), Fraction(20) / video.stride(20))
    assert count == 20
    with av.open(str(tmp_path / "v.mp4")) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")
        assert (stream.width, stream.height, float(stream.average_rate)) == (256, 256, 10.0)
        decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    assert len(decoded) == 20 + 7  # the end is held for 0.7 s
    assert abs(int(decoded[10].mean()) - 100) <= 3
    data = (tmp_path / "v.mp4").read_bytes()
    assert data.index(b"moov") < data.index(b"mdat"), "a browser should be able to start before it has all"
    assert abs(np.asarray(Image.open(tmp_path / "v.jpg")).mean() - 190) <= 3


def test_interrupted_video_leaves_no_file(tmp_path):
    def frames():
        yield np.zeros((64, 64, 3), np.uint8)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        video.write(tmp_path / "v.mp4", tmp_path / "v.jpg", frames(), Fraction(10))
    assert list(tmp_path.iterdir()) == []
