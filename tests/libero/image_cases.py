"""Two pictures that are the same on every machine, for TensorFlow and for ours."""

import numpy as np

ROWS = 9  # every ninth row of a result is stored


def pictures() -> list[np.ndarray]:
    """Return uint8 [256, 256, 3]: noise over ramps with an edge, and noise alone."""
    draw = np.random.RandomState(11)
    y, x = np.mgrid[:256, :256]
    smooth = np.stack([x, y, (x + y) // 2], axis=-1) // 2 + draw.randint(0, 40, (256, 256, 3))
    smooth[60:120, 80:170] = (240, 20, 30)
    return [smooth.astype(np.uint8), draw.randint(0, 256, (256, 256, 3)).astype(np.uint8)]
