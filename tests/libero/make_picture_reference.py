"""Makes tests/libero/data/pictures-tensorflow.npz: what TensorFlow makes of two pictures, step by step.

The steps are those of openvla at c8f03f48, experiments/robot/libero/libero_utils.py (resize_image) and
experiments/robot/openvla_utils.py (crop_and_resize). With TensorFlow 2.15 in an environment of its own:

    PYTHONPATH=. python tests/libero/make_picture_reference.py
"""

from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.libero.image_cases import ROWS, pictures

TARGET = Path(__file__).parent / "data" / "pictures-tensorflow.npz"


def main() -> None:
    """Write every ROWS-th row of each step's result."""
    stored = {}
    for index, image in enumerate(pictures()):
        jpeg = tf.io.decode_image(tf.image.encode_jpeg(image), expand_animations=False, dtype=tf.uint8)
        resized = tf.image.resize(jpeg, (224, 224), method="lanczos3", antialias=True)
        resized = tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)
        for name, value in (("jpeg", jpeg), ("lanczos", resized), ("crop", cropped(resized))):
            stored[f"{name}{index}"] = value.numpy()[::ROWS]
    np.savez_compressed(TARGET, **stored)


def cropped(image: tf.Tensor) -> tf.Tensor:
    """Return the middle 0.9 of the area, stretched back."""
    side = tf.clip_by_value(tf.sqrt(0.9), 0, 1)
    start = (1 - side) / 2
    box = tf.stack([start, start, start + side, start + side])[None]
    pixels = tf.image.convert_image_dtype(image, tf.float32)[None]
    middle = tf.image.crop_and_resize(pixels, box, tf.range(1), (224, 224))[0]
    return tf.image.convert_image_dtype(tf.clip_by_value(middle, 0, 1), tf.uint8, saturate=True)


if __name__ == "__main__":
    main()
