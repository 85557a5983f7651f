"""That the sides which `./lab bench gr00t` compares do different things."""

from bench import gr00t as bench
from bench.parts import gr00t_loading
from services.gr00t.checkpoint.directory import find
from services.gr00t.service.layout import layout
from services.gr00t.service.loading import load_own_policy
from services.gr00t.service.settings import Settings
from services.gr00t.training.robot import robot_of
from tests.calls import count_calls
from tests.gpu_parts import run_gpu_parts
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.videos import Video


def test_gr00t_answers_in_two_dtypes_of_ours_and_in_upstreams_code(tiny_checkpoints, upstream):
    found = tiny_checkpoints("libero")
    one = found.embodiment()
    sizes = layout(one, found.metadata[one.tag])
    ours = {name: load_own_policy(Settings(device="cpu", dtype=name), found, sizes) for name in ("fp32", "bf16")}
    (theirs,) = bench.upstream(found, sizes).values()
    assert type(theirs) is not type(ours["fp32"])
    assert len({policy.info().details["dtype"] for policy in ours.values()}) == 2


def test_gr00t_decodes_videos_again_only_without_a_cache(tiny_checkpoints, tmp_path, monkeypatch):
    for name, value in {"EPISODES": 1, "LENGTH": 4, "BATCH": 2}.items():
        monkeypatch.setattr(gr00t_loading, name, value)
    found = find(str(tiny_checkpoints("libero").directory))
    dataset = LeRobotDataset(gr00t_loading.recordings(tmp_path / "recordings"))
    sides = gr00t_loading.ours(found, dataset, robot_of(dataset, "new_embodiment", found))
    decoded = count_calls(monkeypatch, Video, "frames")
    counts = {}
    for name, next_batch in sides.items():
        counts[name] = []
        for _ in range(2):
            decoded.clear()
            next_batch()
            counts[name].append(len(decoded))
    cameras = len(gr00t_loading.CAMERAS)
    assert counts == {
        "ours, first epoch": [cameras, 0],
        "ours, later epochs": [0, 0],
        "ours, nothing kept": [2 * cameras, 2 * cameras],
    }


def test_gpu_runs_its_parts_of_gr00t_small(tmp_path):
    results = run_gpu_parts(tmp_path, "gr00t", "gr00t_fp32", "gr00t_training")
    assert {part["status"] for part in results.values()} == {"ok"}
    assert results["gr00t"]["figures"][0]["name"] == "gpu_gr00t_chunk"
    assert results["gr00t_fp32"]["figures"][0]["value"] <= 1e-4
    assert [one["name"].rpartition("_")[2] for one in results["gr00t_training"]["figures"]] == [
        "whole",
        "around",
        "lora",
    ]
