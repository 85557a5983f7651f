"""That the parts of the GPU benchmark for this environment run, on small models, and that `looks` compares."""

import json

import pytest

from services.minivla.config import Config
from tests.gpu_parts import run_gpu_parts

VALUES = {"false": False, "0": 0}


@pytest.mark.outside  # the benchmark runs `./lab`, which no image has
def test_looks_trains_networks_that_differ():
    """Every row changes the network or what it learns from; wordings are not the training's sentences."""
    from bench import looks

    trained = set()
    for settings in looks.ROWS.values():
        changes = dict(setting.split("=") for setting in settings)
        config = Config(data="demonstrations", **{name: VALUES.get(text, text) for name, text in changes.items()})
        trained.add((config.size, config.cameras, config.pictures, config.state, config.looks))
    assert len(trained) == len(looks.ROWS) and (next(iter(looks.ROWS.values())) == ())
    wordings = json.loads(looks.WORDINGS.read_text())
    assert set(wordings) == set(looks.BASES.values())
    for sentences in wordings.values():
        assert len(sentences) == 10 and all(len({*other, own}) == 6 for own, other in sentences.items())


def test_gpu_trains_a_small_minivla(tmp_path):
    (result,) = run_gpu_parts(tmp_path, "minivla").values()
    assert result["status"] == "ok" and result["figures"][0]["value"] > 0
