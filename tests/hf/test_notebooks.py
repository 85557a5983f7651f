"""The notebooks of Hugging Face practice run, on what is made locally, and show pictures."""

import pytest

from tests import notebooks


@pytest.mark.parametrize("path", notebooks.of("hf"), ids=notebooks.name_of)
def test_a_notebook_runs_and_shows_images(path, volume, directories):
    cells = notebooks.executed(path, volume.root, HF_HUB_OFFLINE="1")
    assert sum(map(notebooks.shows_image, cells)) >= 3 and notebooks.shows_image(cells[-1])
    (said,) = (output["text"] for output in cells[1].outputs if output.get("name") == "stdout")
    assert "made locally" in said
