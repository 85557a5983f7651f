"""Videos: an episode's frames of one camera as an H.264 mp4, written with short groups and read frame by frame.

A frame is found by its number in the file and not by its time stamp: fps as written in info.json, a video that begins
late, and rounding cannot move it. Every second frame is a key frame, as LeRobot writes its own: to read one
frame, two are decoded at most.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from io import BytesIO
from pathlib import Path

import av
import numpy as np

from vla_common.regular_files import require_regular
from vla_common.unreadable import explain
from vla_datasets import metadata
from vla_datasets.errors import DatasetError

CODEC, PIXELS = "h264", "yuv420p"  # what every decoder reads; AV1, LeRobot's default, some cannot
GROUP = 2  # frames from one key frame to the next
OPTIONS = {"preset": "veryfast", "crf": "18", "g": str(GROUP), "bf": "0", "threads": "1"}  # 18: hardly to be seen
MAX_OPEN = 16  # per process
# A text of another format would have FFmpeg open what it names: playlists and concat lists name files and addresses.
VIDEO_OPTIONS, IMAGE_OPTIONS = ({"format_whitelist": names} for names in ("mov,matroska,avi", "png_pipe,jpeg_pipe"))


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Report FFmpeg's errors with the video's path."""
    try:
        yield
    except FileNotFoundError as error:
        raise metadata.missing(path, "a film") from error
    except av.error.ArgumentError as error:  # its format is not in VIDEO_OPTIONS
        reason = ValueError("its format is not MP4, Matroska or AVI")
        raise metadata.unreadable(path, reason, "a film") from error
    except av.error.FFmpegError as error:
        reason = ValueError((error.strerror or str(error)).rstrip("."))
        raise metadata.unreadable(path, reason, "a film") from error
    except OSError as error:
        raise metadata.unreadable(path, error, "a film") from error


class Video:
    """One open video. Frames are counted from 0 in the order in which they are shown."""

    def __init__(self, path: Path):
        self.path = path
        with _reported(path):
            require_regular(path)
            self._container = av.open(str(path), options=VIDEO_OPTIONS)
            self._stream = next(iter(self._container.streams.video), None)
            if self._stream is None or self._stream.codec_context is None:  # none for an unknown codec
                raise metadata.unreadable(path, ValueError("no images that can be decoded"), "a film")
            self._stream.codec_context.thread_count = 1  # many small films at once, each on one core
            packets = [one for one in self._container.demux(self._stream) if one.pts is not None and one.size]
        context = self._stream.codec_context
        self.codec, self.pixels, self.height, self.width = context.name, context.pix_fmt, context.height, context.width
        self.rate = self._stream.average_rate
        self.pts = sorted(packet.pts for packet in packets)
        keys = (packet for packet in packets if packet.is_keyframe)
        self._keys = sorted((key.pts, key.pts if key.dts is None else key.dts) for key in keys)
        self._decoder: Iterator[av.VideoFrame] = iter(())
        self._at: int | None = None  # the frame decoded last

    def __len__(self) -> int:
        return len(self.pts)

    @property
    def seconds(self) -> list[float]:
        """When each frame is shown."""
        return [float(pts * self._stream.time_base) for pts in self.pts]

    @property
    def longest_group(self) -> int:
        """Return how many frames lie between two key frames at most: what reading a single one may cost."""
        places = [bisect_right(self.pts, pts) for pts, _ in self._keys]
        return max((b - a for a, b in zip(places, [*places[1:], len(self.pts) + 1], strict=True)), default=len(self))

    def frames(self, indices: Sequence[int] | None = None) -> np.ndarray:
        """Return uint8 [n, H, W, 3] of those frames, all by default, in the order asked for."""
        wanted = list(range(len(self))) if indices is None else [int(index) for index in indices]
        for index in wanted:
            if not 0 <= index < len(self):
                raise DatasetError(f"{self.path} has {len(self)} frames; frame {index} was asked for")
        found = np.empty((len(wanted), self.height, self.width, 3), np.uint8)
        for place in sorted(range(len(wanted)), key=wanted.__getitem__):
            found[place] = self._frame(wanted[place])
        return found

    def _frame(self, index: int) -> np.ndarray:
        pts = self.pts[index]
        with _reported(self.path):
            image = self._decoded(pts, self._keys[max(0, bisect_right(self._keys, (pts, 2**62)) - 1)])
            if image is None:  # a key frame that is none, or a container that seeks badly
                image = self._decoded(pts, self._keys[0], anew=True)
        if image is None:
            reason = explain(self.path, ValueError(f"frame {index} cannot be decoded"))
            raise DatasetError(f"frame {index} of {self.path} cannot be decoded: {reason}")
        return image

    def _decoded(self, pts: int, key: tuple[int, int], anew: bool = False) -> np.ndarray | None:
        if anew or self._at is None or not max(self._at + 1, key[0]) <= pts or self._at < key[0]:
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
    """The open videos of one process, those used last; a forked process opens its own."""

    def __init__(self, most: int = MAX_OPEN):
        self.most, self._open, self._process = most, OrderedDict(), os.getpid()

    def __getitem__(self, path: Path) -> Video:
        if self._process != os.getpid():  # a file's offset is shared with the parent, so its videos are left alone
            self._open, self._process = OrderedDict(), os.getpid()
        if path not in self._open:
            self._open[path] = Video(path)
            if len(self._open) > self.most:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(path)
        return self._open[path]

    def __getstate__(self) -> dict:
        return {"most": self.most, "_open": OrderedDict(), "_process": -1}


def frame_count(path: Path) -> int:
    """Return how many frames a video has: as its container says at once, else counted."""
    with _reported(path):
        require_regular(path)
        with av.open(str(path), options=VIDEO_OPTIONS) as container:
            if container.streams.video and container.streams.video[0].frames:
                return container.streams.video[0].frames
    return len(Video(path))


def missing_images(key: str, name: str, known: Sequence[str]) -> DatasetError:
    """Return the error for pictures that a data set does not have."""
    return DatasetError(f"{name} has no pictures {key!r}; it has {', '.join(known) or 'none'}")


def decode_image(data: bytes, where: str) -> np.ndarray:
    """Return uint8 [H, W, 3] of a PNG or JPEG, as data sets of features "image" hold them. `where` is for errors."""
    try:
        with av.open(BytesIO(data), options=IMAGE_OPTIONS) as container:
            return next(container.decode(video=0)).to_ndarray(format="rgb24")
    except (av.error.FFmpegError, StopIteration) as error:
        reason = getattr(error, "strerror", None) or "no image in it"
        raise DatasetError(f"{where} cannot be read as a PNG or JPEG image: {reason}") from error


def write(path: Path, images: np.ndarray, fps: float) -> None:
    """Write uint8 [T, H, W, 3] as a video, whole or not at all."""
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3 or not len(images):
        raise DatasetError(f"a film of {images.dtype} {images.shape} was given; expected uint8 [T, H, W, 3], T ≥ 1")
    if images.shape[1] % 2 or images.shape[2] % 2:
        size = " × ".join(map(str, images.shape[1:3]))
        raise DatasetError(f"pictures of {size} make no {PIXELS} film; choose even sizes")
    rate = Fraction(fps).limit_denominator(1000)
    with metadata.replacing(path) as partial, av.open(str(partial), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=rate, options=OPTIONS)
        stream.height, stream.width = images.shape[1:3]
        stream.pix_fmt = PIXELS
        for number, one in enumerate(images):
            frame = av.VideoFrame.from_ndarray(one, format="rgb24")
            frame.pts, frame.time_base = number, 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
