"""Videos: an episode's frames of one camera as an H.264 mp4, written with short groups and read frame by frame.

Frames are addressed by their number, not their time stamp, so fps, a late start and rounding have no effect. Every
second frame is a key frame, as in LeRobot's videos: reading one frame decodes two at most.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from io import BytesIO
from pathlib import Path

import av
import numpy as np

from vla_common.regular_files import require_regular
from vla_common.unreadable import explain
from vla_datasets import metadata
from vla_datasets.errors import DatasetError

CODEC, PIXELS = "h264", "yuv420p"  # every decoder reads it; some cannot read AV1, LeRobot's default
GROUP = 2  # frames from one key frame to the next
OPTIONS = {"preset": "veryfast", "crf": "18", "g": str(GROUP), "bf": "0", "threads": "1"}  # 18: nearly lossless
MAX_OPEN = 16  # per process
# In other formats (playlists, concat lists) FFmpeg would open the files and addresses that they name.
VIDEO_OPTIONS, IMAGE_OPTIONS = ({"format_whitelist": names} for names in ("mov,matroska,avi", "png_pipe,jpeg_pipe"))


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Report FFmpeg's errors with the video's path."""
    try:
        yield
    except FileNotFoundError as error:
        raise metadata.missing(path, "a video") from error
    except av.error.FFmpegError as error:
        reason = (error.strerror or str(error)).rstrip(".")
        if error.errno == errno.EINVAL:  # not in VIDEO_OPTIONS; the exception's class depends on PyAV's version
            reason = "its format is not MP4, Matroska or AVI"
        raise metadata.unreadable(path, ValueError(reason), "a video") from error
    except OSError as error:
        raise metadata.unreadable(path, error, "a video") from error


@dataclass(frozen=True)
class Clip:
    """An episode's part of a video: `length` frames from the one nearest to `start_s` on; None: the whole video."""

    path: Path
    start_s: float = 0.0
    length: int | None = None


class Video:
    """One open video. Frames are counted from 0 in display order."""

    def __init__(self, path: Path):
        self.path = path
        with _reported(path):
            require_regular(path)
            self._container = av.open(str(path), options=VIDEO_OPTIONS)
            self._stream = next(iter(self._container.streams.video), None)
            if self._stream is None or self._stream.codec_context is None:  # none for an unknown codec
                raise metadata.unreadable(path, ValueError("no images that can be decoded"), "a video")
            self._stream.codec_context.thread_count = 1  # many small videos at once, each on one core
            packets = [
                packet for packet in self._container.demux(self._stream) if packet.pts is not None and packet.size
            ]
        context = self._stream.codec_context
        self.codec, self.pixels, self.height, self.width = context.name, context.pix_fmt, context.height, context.width
        self.rate, self.time_base = self._stream.average_rate, float(self._stream.time_base)
        self.pts = sorted(packet.pts for packet in packets)
        keys = (packet for packet in packets if packet.is_keyframe)
        self._keys = sorted((key.pts, key.pts if key.dts is None else key.dts) for key in keys)
        self._decoder: Iterator[av.VideoFrame] = iter(())
        self._at: int | None = None  # the frame decoded last

    def __len__(self) -> int:
        return len(self.pts)

    @property
    def seconds(self) -> list[float]:
        """The time of each frame."""
        return [pts * self.time_base for pts in self.pts]

    @property
    def longest_group(self) -> int:
        """The longest distance between two key frames, in frames: the cost of reading one frame."""
        positions = [bisect_right(self.pts, pts) for pts, _ in self._keys]
        return max(
            (b - a for a, b in zip(positions, [*positions[1:], len(self.pts) + 1], strict=True)), default=len(self)
        )

    def frames(self, indices: Sequence[int] | None = None) -> np.ndarray:
        """Return uint8 [n, H, W, 3] of those frames, all by default, in the order of `indices`."""
        requested = list(range(len(self))) if indices is None else [int(index) for index in indices]
        for index in requested:
            if not 0 <= index < len(self):
                raise DatasetError(f"{self.path} has {len(self)} frames; frame {index} does not exist")
        images = np.empty((len(requested), self.height, self.width, 3), np.uint8)
        for slot in sorted(range(len(requested)), key=requested.__getitem__):
            images[slot] = self._frame(requested[slot])
        return images

    def _frame(self, index: int) -> np.ndarray:
        pts = self.pts[index]
        with _reported(self.path):
            image = self._decoded(pts, self._keys[max(0, bisect_right(self._keys, (pts, 2**62)) - 1)])
            if image is None:  # a wrong key frame flag, or a container that seeks badly
                image = self._decoded(pts, self._keys[0], restart=True)
        if image is None:
            reason = explain(self.path, ValueError(f"frame {index} cannot be decoded"))
            raise DatasetError(f"frame {index} of {self.path} cannot be decoded: {reason}")
        return image

    def _decoded(self, pts: int, key: tuple[int, int], restart: bool = False) -> np.ndarray | None:
        if restart or self._at is None or not max(self._at + 1, key[0]) <= pts or self._at < key[0]:
            self._container.seek(key[1], stream=self._stream)
            self._decoder = self._container.decode(self._stream)
        for frame in self._decoder:
            self._at = frame.pts
            if frame.pts == pts:
                return frame.to_ndarray(format="rgb24")
            if frame.pts > pts:
                return None
        self._at = None
        return None

    def close(self) -> None:
        """Close the file."""
        self._container.close()


class OpenVideos:
    """The most recently used videos of one process, kept open; a forked process opens its own."""

    def __init__(self, capacity: int = MAX_OPEN):
        self.capacity, self._open, self._process = capacity, OrderedDict(), os.getpid()

    def __getitem__(self, path: Path) -> Video:
        if self._process != os.getpid():  # file offsets are shared with the parent process
            self._open, self._process = OrderedDict(), os.getpid()
        if path not in self._open:
            self._open[path] = Video(path)
            if len(self._open) > self.capacity:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(path)
        return self._open[path]

    def frames(self, clip: Clip, indices: Sequence[int] | None = None) -> np.ndarray:
        """Return uint8 [n, H, W, 3] of those frames of a clip, counted from its first; all by default."""
        video = self[clip.path]
        if clip.length is None:
            return video.frames(indices)
        requested = range(clip.length) if indices is None else [int(index) for index in indices]
        if odd := [index for index in requested if not 0 <= index < clip.length]:
            raise DatasetError(f"{clip.path}: the episode has {clip.length} frames; frame {odd[0]} does not exist")
        pts = clip.start_s / video.time_base
        near = range(max(0, bisect_right(video.pts, pts) - 1), min(bisect_right(video.pts, pts) + 1, len(video)))
        first = min(near, key=lambda frame: abs(video.pts[frame] - pts))
        return video.frames([first + index for index in requested])

    def __getstate__(self) -> dict:
        return {"capacity": self.capacity, "_open": OrderedDict(), "_process": -1}


def frame_count(path: Path) -> int:
    """Return the number of frames: from the container if it has it, else counted."""
    with _reported(path):
        require_regular(path)
        with av.open(str(path), options=VIDEO_OPTIONS) as container:
            if container.streams.video and container.streams.video[0].frames:
                return container.streams.video[0].frames
    return len(Video(path))


def require_end(path: Path) -> None:
    """Raise DatasetError if a video's last frames are missing, as after an interrupted download."""
    with _reported(path), av.open(str(path), options=VIDEO_OPTIONS) as container:
        stream = container.streams.video[0]
        container.seek(stream.duration or 0, stream=stream)
        if not any(packet.size and not packet.is_corrupt for packet in container.demux(stream)):
            raise metadata.unreadable(path, ValueError("its end is missing"), "a video")


def missing_images(key: str, name: str, available: Sequence[str]) -> DatasetError:
    """Return the error for images that a data set does not have."""
    return DatasetError(f"{name} has no images {key!r}; it has {', '.join(available) or 'none'}")


def decode_image(data: bytes, label: str) -> np.ndarray:
    """Decode a PNG or JPEG to uint8 [H, W, 3]. label: names it in errors."""
    try:
        with av.open(BytesIO(data), options=IMAGE_OPTIONS) as container:
            return next(container.decode(video=0)).to_ndarray(format="rgb24")
    except (av.error.FFmpegError, StopIteration) as error:
        reason = getattr(error, "strerror", None) or "no image in it"
        raise DatasetError(f"{label} cannot be read as a PNG or JPEG image: {reason}") from error


def concatenate(path: Path, parts: Sequence[Path], fps: float) -> None:
    """Write a video of several that `write` has written, one after the other, without encoding them again."""
    rate = Fraction(fps).limit_denominator(1000)
    path.parent.mkdir(parents=True, exist_ok=True)
    # With its index first, a player can begin before the whole file is there.
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container:
        stream, count = None, 0
        for part in parts:
            with av.open(str(part)) as source:
                template = source.streams.video[0]
                if stream is None:
                    if hasattr(container, "add_stream_from_template"):  # PyAV from 14 on
                        stream = container.add_stream_from_template(template)
                    else:
                        stream = container.add_stream(template=template)
                ticks = 1 / (rate * template.time_base)
                for packet in source.demux(template):
                    if packet.dts is not None:
                        packet.pts = packet.dts = round(count * ticks)
                        packet.stream, packet.time_base = stream, template.time_base
                        container.mux(packet)
                        count += 1


def write(path: Path, images: np.ndarray, fps: float) -> None:
    """Write uint8 [T, H, W, 3] as a video, atomically."""
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3 or not len(images):
        raise DatasetError(f"cannot write {images.dtype} {images.shape} as a video; expected uint8 [T, H, W, 3], T ≥ 1")
    if images.shape[1] % 2 or images.shape[2] % 2:
        size = " × ".join(map(str, images.shape[1:3]))
        raise DatasetError(f"cannot write images of {size} as a {PIXELS} video; choose even sizes")
    rate = Fraction(fps).limit_denominator(1000)
    with metadata.replacing(path) as partial, av.open(str(partial), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=rate, options=OPTIONS)
        stream.height, stream.width = images.shape[1:3]
        stream.pix_fmt = PIXELS
        for number, image in enumerate(images):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = number, 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
