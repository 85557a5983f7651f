"""Pictures that are kept between trainings: the same bits, decoded anew where a film changed, whole or not there."""

import errno
import fcntl
import os

import pytest
import torch

from services.ws_mdl import frames
from services.ws_mdl.frames import images_of, of_episode
from tests import data_sets
from vla_datasets import libero, videos
from vla_datasets.errors import DatasetError
from vla_datasets.loader import open_dataset

KEYS = [libero.video_key(camera) for camera in data_sets.CAMERAS]
STEPS = sum(data_sets.LENGTHS)


@pytest.fixture
def found(tmp_path):
    return data_sets.lerobot(tmp_path / "set")


def read(found, side: int = 16) -> tuple[torch.Tensor, int]:
    """Return the pictures, and how many episodes were decoded for them."""
    told = []
    seen = images_of(found, found.episodes, KEYS, side, lambda done, total: told.append(done))
    return seen, len(told) - 1


def kept(volume) -> list[str]:
    return sorted(path.name for path in (volume.path("datasets") / frames.DIRECTORY).glob("*.rgb"))


@pytest.mark.parametrize("layout", ["lerobot", "hdf5"])
def test_they_are_decoded_once_and_stay_the_same_bits(tmp_path, volume, layout):
    getattr(data_sets, layout)(tmp_path / "set")
    found = open_dataset(tmp_path / "set")
    decoded = torch.cat([of_episode(found, episode, KEYS, 16) for episode in found.episodes])
    first, again = read(found), read(found)
    assert (first[1], again[1]) == (3, 0) and len(kept(volume)) == 1
    assert torch.equal(first[0], decoded) and torch.equal(again[0], decoded) and decoded.shape == (STEPS, 2, 3, 16, 16)
    again[0][0] = 7  # of this process alone
    assert torch.equal(read(found)[0], decoded)


def test_other_videos_sizes_and_episodes_are_decoded_again(found, volume):
    first, _ = read(found)
    videos.write(found.video_path(1, KEYS[0]), data_sets.pictures(data_sets.LENGTHS[1], seed=99), 20)
    changed, decoded = read(open_dataset(found.directory))
    assert decoded == 3 and not torch.equal(changed, first)
    assert read(found, 8)[1] == 3
    fewer = images_of(found, found.episodes[:1], KEYS, 16, lambda done, total: None)
    assert len(fewer) == data_sets.LENGTHS[0] and len(kept(volume)) == 4


def test_a_file_that_was_cut_off_is_made_again(found, volume):
    first, _ = read(found)
    [path] = (volume.path("datasets") / frames.DIRECTORY).glob("*.rgb")
    path.unlink()  # what is mapped is never written to
    path.write_bytes(b"half")
    again, decoded = read(found)
    assert decoded == 3 and torch.equal(again, first)


def test_what_was_used_longest_ago_goes_first(found, volume, monkeypatch):
    for side in (8, 16):
        read(found, side)
    old, new = (volume.path("datasets") / frames.DIRECTORY / name for name in kept(volume))
    if old.stat().st_size > new.stat().st_size:
        old, new = new, old
    os.utime(new, (1, 1))
    (new.parent / ".interrupted.rgb").write_bytes(b"half")
    monkeypatch.setattr(frames, "MAX_BYTES", STEPS * 2 * 3 * (8 * 8 + 24 * 24))
    read(found, 8)  # now it is used
    read(found, 24)
    assert old.exists() and not new.exists() and len(kept(volume)) == 2
    assert not (new.parent / ".interrupted.rgb").exists()


@pytest.mark.parametrize("when", ["before", "in the middle"])
def test_without_room_it_is_reported_and_training_has_its_images(found, volume, monkeypatch, capsys, when):
    if when == "before":
        monkeypatch.setattr(frames, "SPARE", 10**18)
    else:
        monkeypatch.setattr(os, "fsync", full)
    seen, _ = read(found)
    assert len(seen) == STEPS and not kept(volume)
    assert not list((volume.path("datasets") / frames.DIRECTORY).glob(".*"))
    said = capsys.readouterr().out
    assert "decoded images are not cached: " in said
    assert ("free some space" if when == "before" else "No space left on device") in said


def full(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_while_another_process_keeps_them_nobody_waits(found, volume):
    directory = frames.make_directory_without_links(volume.path("datasets") / frames.DIRECTORY)
    with (directory / frames.LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        seen, _ = read(found)
    assert len(seen) == STEPS and not kept(volume)
    assert read(found)[1] == 3 and kept(volume)


NONE = {"missing": "is missing; expected a video", "short": "expected 10 each", "cut off": "cannot be read as a video"}


@pytest.mark.parametrize("how", NONE)
def test_a_video_that_is_none_is_reported_and_nothing_is_kept(found, volume, how):
    path = found.video_path(2, KEYS[1])
    if how == "missing":
        path.unlink()
    elif how == "cut off":
        os.truncate(path, 200)
    else:
        videos.write(path, data_sets.pictures(4), 20)
    with pytest.raises(DatasetError, match=NONE[how]):
        read(found)
    assert not list((volume.path("datasets") / frames.DIRECTORY).glob("*.rgb*"))


def test_a_video_that_is_a_pipe_is_not_opened(found, volume):
    path = found.video_path(2, KEYS[1])
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DatasetError, match="regular file"):
        read(found)
