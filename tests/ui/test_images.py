"""Uploaded files: what is read, what is refused in words, and what is sent."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from serving import ENVIRONMENT

from services.ui.ask import images, query
from services.ui.ask.inputs import Requirements
from vla_contract import Part, PolicyInfo
from vla_contract.protocol.image_budget import MAX_SCANS
from vla_evaluation.pictures import transforms


def read(path, left=None) -> np.ndarray:
    with open(path, "rb") as file:
        return images.read(file, left)


def some(width=30, height=20) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (height, width, 3), np.uint8)


def saved(tmp_path, image: Image.Image, kind: str, **settings):
    path = tmp_path / f"picture.{kind.lower()}"
    image.save(path, kind, **settings)
    return path


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP"])
def test_a_lossless_image_keeps_its_pixels(kind, tmp_path):
    path = saved(tmp_path, Image.fromarray(some()), kind, **({"lossless": True} if kind == "WEBP" else {}))
    assert np.array_equal(read(path), some())


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "I;16", "1", "LA"])
def test_any_mode_becomes_three_channels(mode, tmp_path):
    image = Image.new(mode, (8, 6)) if mode == "I;16" else Image.fromarray(some(8, 6)).convert(mode)
    pixels = read(saved(tmp_path, image, "PNG"))
    assert pixels.shape == (6, 8, 3) and pixels.dtype == np.uint8


def test_what_is_transparent_lies_on_white(tmp_path):
    path = saved(tmp_path, Image.new("RGBA", (4, 4), (0, 0, 0, 0)), "PNG")
    assert (read(path) == 255).all()


def test_a_phones_image_stands_upright(tmp_path):
    exif = Image.Exif()
    exif[274] = 6  # to be turned by 90° to the right
    path = saved(tmp_path, Image.fromarray(some(30, 20)), "PNG", exif=exif)
    assert np.array_equal(read(path), np.rot90(some(30, 20), -1))


def test_what_is_not_an_image_is_refused_with_what_would_be(tmp_path):
    cut = saved(tmp_path, Image.fromarray(some(300, 200)), "PNG")
    cut.write_bytes(cut.read_bytes()[:5000])
    text, svg, empty = tmp_path / "a.png", tmp_path / "b.svg", tmp_path / "c.jpg"
    text.write_text("hello")
    svg.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    empty.touch()
    for path in (cut, text, svg, empty):
        with pytest.raises(images.ImageError, match="PNG, JPEG"):
            read(path)


def test_too_many_pixels_are_refused_before_they_are_unpacked(tmp_path):
    path = saved(tmp_path, Image.new("1", (10_000, 5_000)), "PNG")
    with pytest.raises(images.ImageError, match="10000×5000; upload at most 40 megapixels"):
        read(path)
    bomb = saved(tmp_path, Image.new("1", (20_000, 20_000)), "PNG")
    with pytest.raises(images.ImageError, match="40 megapixels"):
        read(bomb)


def test_all_images_of_a_question_have_one_limit(tmp_path):
    first = saved(tmp_path, Image.new("1", (6_000, 5_000)), "PNG")
    second = saved(tmp_path, Image.new("1", (5_000, 3_000)), "BMP")
    info = PolicyInfo("two", (Part("x", 1, "m", "of the base"),), cameras=("front", "wrist"))
    with first.open("rb") as one, second.open("rb") as other:
        form = query.Form("go", pictures=(one, other), needed=Requirements(("front",), ("wrist",)))
        with pytest.raises(images.ImageError, match=str(3 * images.MAX_PIXELS)):
            query.observe(form, info)
    assert read(first).shape == (5_000, 6_000, 3) and read(second).shape == (3_000, 5_000, 3)


def test_a_jpeg_of_many_scans_is_refused(tmp_path):
    path = saved(tmp_path, Image.fromarray(some(300, 200)), "JPEG", progressive=True)
    data = path.read_bytes()
    assert read(path).shape == (200, 300, 3)
    last = data.rfind(b"\xff\xda")
    path.write_bytes(data[:last] + data[last:-2] * 200 + data[-2:])
    with pytest.raises(images.ImageError, match=f"at most {MAX_SCANS}"):
        read(path)


def test_many_questions_at_once_take_the_memory_of_one_image(tmp_path):
    path = saved(tmp_path, Image.new("P", (8_000, 5_000)), "PNG", transparency=0)
    assert path.stat().st_size < 50_000
    program = f"""
import re, threading
from services.ui.ask import images
threads = [threading.Thread(target=images.read, args=(open({str(path)!r}, "rb"),)) for _ in range(6)]
[one.start() for one in threads], [one.join() for one in threads]
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""
    command = [sys.executable, "-c", program]
    shown = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
    assert int(shown) / 1024 < 700  # six at once take 1,200; a thread may hold its result while the next decodes


def test_too_large_a_file_is_refused_with_its_size(tmp_path):
    path = tmp_path / "big.png"
    with path.open("wb") as file:
        file.truncate(21 * 2**20)
    with pytest.raises(images.ImageError, match=r"21\.0 MB; upload at most 20 MB"):
        read(path)


@pytest.mark.parametrize("size", [(224, 224), (180, 320), (1, 1)])
@pytest.mark.parametrize("crop", [None, 0.9])
def test_a_policys_fixed_size_is_met(size, crop):
    fitted = images.fit(some(100, 50), size, crop)
    assert fitted.shape == (*size, 3) and fitted.dtype == np.uint8


def test_libero_images_take_the_evaluations_own_steps():
    expected = transforms.centre_crop(transforms.resize_lanczos3(some(256, 256), 224), 0.9)
    assert np.array_equal(images.fit(some(256, 256), (224, 224), 0.9), expected)


def test_the_page_takes_of_the_evaluation_the_transforms_alone():
    show = "import sys, services.ui.ask.images; print(*sorted(one for one in sys.modules if 'vla_evaluation' in one))"
    command = [sys.executable, "-c", show]
    shown = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout.split()
    assert shown == ["vla_evaluation", "vla_evaluation.pictures", "vla_evaluation.pictures.transforms"]


def test_without_a_fixed_size_only_what_is_large_gets_smaller():
    assert np.array_equal(images.fit(some(300, 200), None), some(300, 200))
    assert images.fit(some(2048, 1000), None).shape == (500, 1024, 3)
    assert images.fit(some(3000, 1), None).shape == (1, 1024, 3)
