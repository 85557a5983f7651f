"""That the parts of the GPU benchmark for this environment run, on small models."""

from tests.gpu_parts import run_gpu_parts


def test_gpu_trains_a_small_minivla(tmp_path):
    (result,) = run_gpu_parts(tmp_path, "minivla").values()
    assert result["status"] == "ok" and result["figures"][0]["value"] > 0
