"""Pictures from all sources, and what is said of wrong ones."""

import gzip

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import interpolate

from services.ws_mdl.diffusion import data, sprites
from services.ws_mdl.diffusion.samplers import contexts_for, parse_context


def one_hot(labels, width=5):
    return np.eye(width)[labels]


def write_sprites(directory, images=None, labels=None):
    drawn, numbers = sprites.make_sprites(20, seed=1)
    np.save(directory / "sprites_16x16.npy", drawn if images is None else images)
    np.save(directory / "sprite_labels.npy", one_hot(numbers) if labels is None else labels)
    return drawn, numbers


def idx_bytes(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes()


def test_digits_are_those_that_scikit_learn_loads():
    loaded, images = load_digits(), data.load("digits")
    assert np.array_equal(images.labels, loaded.target) and images.labels.dtype == torch.int64
    small = torch.from_numpy(loaded.images).float()[:, None] / 8 - 1
    assert torch.equal(images.x, interpolate(small, scale_factor=2, mode="bilinear"))


@pytest.mark.parametrize("name", ("digits", "sprites"))
def test_the_sets_without_download_are_complete_and_in_range(name):
    images = data.load(name)
    assert images.x.dtype == torch.float32 and images.x.shape[2:] == (16, 16)
    assert images.x.min() == -1 and images.x.max() <= 1 and images.x.max() > 0.9
    assert set(images.labels.tolist()) == set(range(len(images.classes)))
    assert len(images.x) == {"digits": 1797, "sprites": data.SPRITES_COUNT}[name]


def test_sprites_depend_on_the_seed_alone_and_differ_within_a_class():
    first, labels = sprites.make_sprites(200, seed=7)
    again, _ = sprites.make_sprites(200, seed=7)
    other, _ = sprites.make_sprites(200, seed=8)
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    for kind in range(len(sprites.CLASSES)):
        members = first[labels == kind]
        assert len(members) == 40 and len(np.unique(members.reshape(40, -1), axis=0)) == 40


def test_a_share_is_held_back_and_nothing_is_in_both():
    images = data.load("sprites")
    kept, held = images.split(0.1)
    assert (len(kept.x), len(held.x)) == (5400, 600)
    again = images.split(0.1)[1]
    assert torch.equal(held.x, again.x)


def test_the_courses_arrays_are_read(tmp_path):
    drawn, numbers = write_sprites(tmp_path)
    images = data.load(str(tmp_path))
    assert images.classes == sprites.CLASSES and images.labels.tolist() == numbers.tolist()
    back = ((images.x + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    assert np.array_equal(back, drawn)


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (np.zeros((20, 16, 16), np.uint8), None, r"\[20, 16, 16\]; expected uint8 \[n, h, h, 3\]"),
        (np.zeros((20, 16, 16, 3), np.float32), None, "float32"),
        (np.zeros((20, 16, 12, 3), np.uint8), None, "expected"),
        (np.zeros((20, 18, 18, 3), np.uint8), None, "h = 8, 12, 16"),
        (np.zeros((19, 16, 16, 3), np.uint8), None, "19 images and 20 labels"),
        (None, one_hot(np.zeros(20, int), 7), r"\[20, 7\]; expected \[n, 5\]"),
        (None, np.ones((20, 5)), "not one-hot"),
        (None, one_hot(np.zeros(20, int)) * 0.5, "not one-hot"),
        (np.array([{"code": 1}], object), None, "not an array of numbers"),
    ],
)
def test_wrong_shapes_ranges_and_label_widths_are_named(tmp_path, images, labels, words):
    write_sprites(tmp_path, images, labels)
    with pytest.raises(ValueError, match=words):
        data.load(str(tmp_path))


@pytest.mark.parametrize("packed", (False, True))
def test_mnists_files_are_read(tmp_path, packed):
    x = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
    y = np.arange(6, dtype=np.uint8)
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, array in (("images-idx3", x), ("labels-idx1", y)):
        content, end = (gzip.compress(idx_bytes(array)), ".gz") if packed else (idx_bytes(array), "")
        (raw / f"train-{name}-ubyte{end}").write_bytes(content)
    images = data.load(str(tmp_path))
    assert images.x.shape == (6, 1, 28, 28) and images.labels.tolist() == list(range(6))
    torch.testing.assert_close(images.x[:, 0], torch.from_numpy(x).float() / 127.5 - 1)


def test_a_cut_off_or_foreign_idx_file_is_named(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte"
    content = idx_bytes(np.zeros((4, 28, 28), np.uint8))
    path.write_bytes(content[:-5])
    with pytest.raises(ValueError, match="4 × 28 × 28 .* 3131"):
        data.idx(path, 3)
    path.write_bytes(b"PNG!" + content)
    with pytest.raises(ValueError, match="expected 00000803"):
        data.idx(path, 3)


def test_a_source_that_does_not_exist_and_a_directory_without_images_are_named(tmp_path):
    with pytest.raises(ValueError, match="data 'digitz' not found; expected digits, sprites, mnist"):
        data.load("digitz")
    with pytest.raises(ValueError, match=r"has no \.npy files; expected two"):
        data.load(str(tmp_path))


def test_contexts_are_classes_mixes_or_all_in_turn():
    classes = ("hero", "food", "spell")
    assert parse_context("food", classes).tolist() == [0, 1, 0]
    assert parse_context("hero+food", classes).tolist() == [1, 1, 0]
    torch.testing.assert_close(parse_context("hero:1,spell:0.6", classes), torch.tensor([1, 0, 0.6]))
    assert contexts_for("all", classes, 6).argmax(1).tolist() == [0, 0, 1, 1, 2, 2]
    assert contexts_for("food", classes, 4).shape == (4, 3)
    with pytest.raises(ValueError, match="did you mean 'spell'"):
        parse_context("spel", classes)
    with pytest.raises(ValueError, match="weight 'much'; expected a number"):
        parse_context("hero:much", classes)
