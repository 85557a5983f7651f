"""A disk that fills up while a model is trained: one sentence, and the run goes on where it was once there is room."""

import os
import shutil
import subprocess

import pytest

from tests import data_sets, forked

SMALL = """
mount -t tmpfs -o size=100k none "$VLALAB_VOLUME" && "$@"
code=$?; find "$VLALAB_VOLUME" -name "*.pt*"; exit $code
"""
COURSE = {
    "diffusion": ["--data", "digits", "--epochs", "1", "--n-feat", "8"],
    "transformer": ["--size", "tiny", "--epochs", "1", "--val-sentences", "1", "--corpus"],
    "minivla": ["--size", "tiny", "--epochs", "1", "--data"],
}


def corpus(directory) -> list[str]:
    path = directory / "few.tsv"
    path.write_text("".join(f"one two {n}\tuno due {n}\n" for n in range(200)))
    return [str(path)]


DATA = {"transformer": corpus, "minivla": lambda directory: [str(data_sets.lerobot(directory / "few").directory)]}


def train(model: str, volume, data: list[str]) -> subprocess.CompletedProcess:
    """Train on a disk of 100 kB; behind what training printed stand the weight files that are there."""
    apart = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SMALL, "sh"]
    module = f"services.{'' if model == 'minivla' else 'ws_mdl.'}{model}.train"
    command = [*apart, *forked.python("-m", module, "--device", "cpu", *COURSE[model], *data)]
    variables = {**os.environ, "VLALAB_VOLUME": str(volume), "PYTHONUTF8": "1"}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("model", COURSE)
def test_a_full_disk_ends_training_with_a_sentence_and_no_broken_weights(tmp_path, model):
    probe = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True).returncode != 0:
        pytest.skip("a small disk of its own needs user namespaces, which are not allowed here")
    (tmp_path / "volume").mkdir()
    done = train(model, tmp_path / "volume", DATA.get(model, lambda directory: [])(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and "no space left" in done.stderr.splitlines()[-1]
    assert ".pt" not in done.stdout
