"""The course's own files: brought by what is in them, whole, read as numbers only, and safe from later runs."""

import json
import pickle
import shutil
import stat
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from services.ws_mdl.course_files import import_files
from services.ws_mdl.diffusion import sample as sampling
from services.ws_mdl.diffusion import train as diffusion_training
from services.ws_mdl.diffusion.config import Config as DiffusionConfig
from services.ws_mdl.diffusion.data import load
from services.ws_mdl.diffusion.model import ContextUnet
from services.ws_mdl.transformer import translate
from services.ws_mdl.transformer.config import get_config
from services.ws_mdl.transformer.train import train_model
from tests.ws_mdl.course_files import SEQ, write_all
from vla_common.volume import Volume
from vla_modelkit.training.weights import WeightFiles, load_state


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A student's folder of the course."""
    return write_all(tmp_path_factory.mktemp("course"))


@pytest.fixture(scope="module")
def brought(course, tmp_path_factory):
    """A volume to which it was brought."""
    volume = Volume(tmp_path_factory.mktemp("volume"))
    assert import_files(course, "course", volume) == []
    return volume


@pytest.fixture
def used(brought, tmp_path, monkeypatch):
    """A copy of that volume, which programs find."""
    shutil.copytree(brought.root, tmp_path / "volume")
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    return Volume()


def files_below(directory) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# --- what comes ---------------------------------------------------------------------------------------------


def test_every_file_of_the_course_comes_and_the_originals_stay(course, brought):
    made = set(files_below(brought.root))
    for name in (
        *(f"checkpoints/transformer/course-en-ko/tmodel_{epoch}.pt" for epoch in ("00", "10", "20", "29")),
        "checkpoints/transformer/course-en-ko/tokenizer_en.json",
        *(f"checkpoints/diffusion/course-model/model_{epoch}.pt" for epoch in ("00", "04", "31")),
        "checkpoints/diffusion/course-l3-context-model/model_31.pt",
        "checkpoints/diffusion/course-l2-model-mnist/model_04.pt",
        "datasets/course-sprites/sprites_1788_16x16.npy",
    ):
        assert name in made
    assert any(name.startswith("logs/tensorboard/course/Transformer/runs/tmodel/events.out") for name in made)
    assert len(list(course.rglob("*.pt*"))) == 9


def test_a_translator_has_the_numbers_of_the_courses_own(course, brought):
    """All but those of norms: test_transformer_training.py compares what comes out."""
    state = load_state(course / "Transformer/weights/tmodel_10.pt")
    trained = translate.load_trained(brought.checkpoints / "transformer/course-en-ko", "cpu", epoch=10)
    ours, theirs = trained.model.state_dict(), state["model_state_dict"]
    kept = [name for name in theirs if not name.endswith("norm.alpha")]
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in kept)
    assert trained.config.seq == SEQ and trained.config.pair == "en-ko" and trained.config.keep == 0


@pytest.mark.parametrize(("run", "height"), [("model", 16), ("l2-model-mnist", 28)])
def test_a_noise_predictor_predicts_as_the_courses_does(course, brought, run, height):
    """The course pools 4 × 4 at any height, and its first shortcut is zero on average."""
    name = "L2_model_mnist_4" if height == 28 else "model_4"
    state = load_state(course / f"Diffusion/weights/{name}.pth")
    channels, classes = state["init_conv.conv1.0.weight"].shape[1], state["contextembed1.model.0.weight"].shape[1]
    original = ContextUnet(channels, 8, classes, height, pool=4)
    original.load_course_weights(state)
    trained = sampling.open_run(f"course-{run}", brought, "cpu", epoch=4)
    x, t = torch.randn(2, channels, height, height), torch.tensor([0.5])
    with torch.inference_mode():
        torch.testing.assert_close(trained.nn_model(x, t), original.eval()(x, t), atol=1e-4, rtol=1e-3)


def test_stages_can_be_compared(used, capsys, monkeypatch):
    translate.main(translate.TranslateCommand(("the door is open",), epoch="0,10,20,29", device="cpu"))
    assert [line[:8] for line in capsys.readouterr().out.splitlines()] == [f"epoch {n}" for n in ("00", 10, 20, 29)]
    runs = {epoch: sampling.open_run("course-model", used, "cpu", epoch) for epoch in (0, 31)}
    path = sampling.save_stages(sampling.Request(steps=2, epoch="0,31", columns=2), runs)
    assert path.name == "stages-epoch0+31-ddim-2-seed0.png" and path.stat().st_size > 1000
    with pytest.raises(ValueError, match=r"model_07.pt not found; .* has model_00.pt, model_04.pt, model_31.pt"):
        sampling.open_run("course-model", used, "cpu", 7)


def test_the_sprites_are_trained_on_by_name(used):
    images = load("course-sprites")
    assert len(images.x) == 40 and images.classes[0] == "hero"
    trained = sampling.open_run("course-model", used, "cpu").config.data
    assert trained == "course-sprites"  # its pictures are scored against those


def test_an_archive_gives_what_its_directory_gives(course, brought, tmp_path):
    shutil.make_archive(str(tmp_path / "course"), "zip", course)
    volume = Volume(tmp_path / "volume")
    assert import_files(tmp_path / "course.zip", "course", volume) == []
    ours, theirs = files_below(volume.root), files_below(brought.root)
    assert ours.keys() == theirs.keys()
    assert all(ours[name] == theirs[name] for name in ours if not name.endswith(".pt"))
    assert not list(volume.root.rglob(".import-*"))


# --- nothing is lost ----------------------------------------------------------------------------------------


def test_a_later_run_deletes_nothing_and_writes_over_nothing(used):
    directory = used.checkpoints / "transformer/course-en-ko"
    before = files_below(directory)
    text = "".join(f"the door is open {n}\t문이 열려 있다 {n}\n" for n in range(30))
    (used.datasets / "pairs.tsv").write_text(text)
    for path in directory.glob("*.pt"):  # the corpus is the student's own
        state = load_state(path)
        torch.save({**state, "config": {**state["config"], "corpus": "pairs.tsv"}}, path)
    changed = files_below(directory)
    sizes = {"d_model": 16, "N": 1, "h": 8, "d_ff": 32, "seq": SEQ, "val_sentences": 0, "device": "cpu"}
    settings = {"corpus": "pairs.tsv", "pair": "en-ko", "name": "course-en-ko", "keep": 1, **sizes}
    train_model(get_config("course", epochs=32, **settings), used)
    after = files_below(directory)
    assert set(before) <= set(after) and all(after[name] == changed[name] for name in before)
    assert "tmodel_31.pt" in after and "tmodel_30.pt" not in after  # its own it keeps as it was told
    with pytest.raises(ValueError, match="would overwrite tmodel_29.pt, which was imported"):
        train_model(get_config("course", epochs=40, preload="10", **settings), used)


def test_weights_without_an_optimizer_are_not_trained_on(used):
    config = DiffusionConfig(name="course-model", data="course-sprites", n_feat=8, device="cpu", precision="fp32")
    with pytest.raises(ValueError, match="imported without optimizer"):
        diffusion_training.train_model(config, used)


def test_what_exists_stays(course, used, tmp_path, capsys):
    before = files_below(used.root)
    assert import_files(course, "course", used) == [] and files_below(used.root) == before
    assert capsys.readouterr().out.count("already imported") == 6
    other = shutil.copytree(course, tmp_path / "other")
    changed = other / "Diffusion/weights/model_4.pth"
    torch.save({**load_state(changed), "more": torch.ones(1)}, changed)
    (reason,) = import_files(other, "course", used)
    assert "course-model already exists with other files; use another --name" in reason
    assert files_below(used.root) == before


# --- what is refused ----------------------------------------------------------------------------------------


class Program:
    """Unpickled, it would write a file."""

    def __reduce__(self):
        return (print, ("a pickle ran",))


WRONG = {
    "tmodel_00.pt": (lambda path: torch.save({"model_state_dict": Program()}, path), "was not loaded"),
    "old.pt": (lambda path: path.write_bytes(pickle.dumps(Program(), 2)), "was not loaded"),
    "tmodel_01.pt": (lambda path: path.write_bytes(b"PK\3\4 and no more"), "cannot be read"),
    "tmodel_02.pt": (lambda path: torch.save({"epoch": 2}, path), "lacks global_step, model_state_dict"),
    "model_3.pth": (lambda path: torch.save({"init_conv.conv1.0.weight": torch.ones(8, 3, 3, 3)}, path), "lacks 'con"),
    "note.pth": (lambda path: path.write_text("hello"), "has unexpected content for its name"),
    "words.npy": (lambda path: np.save(path, np.array([{}], object), allow_pickle=True), "not an array of numbers"),
    "cut.npy": (lambda path: path.write_bytes(b"\x93NUMPY\1\0"), "not an array of numbers"),
    "odd.npy": (lambda path: np.save(path, np.ones(3)), "holds float64 [3]"),
    "tokenizer_en.json": (lambda path: path.write_text("{}"), "has unexpected content for its name"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_named_with_the_reason_and_the_others_come(name, tmp_path, capsys):
    write, reason = WRONG[name]
    (tmp_path / "course").mkdir()
    draw = np.random.default_rng(0)
    np.save(tmp_path / "course" / "good.npy", draw.integers(0, 256, (4, 16, 16, 3), np.uint8))
    np.save(tmp_path / "course" / "good_labels.npy", np.eye(5)[:4])
    write(tmp_path / "course" / name)
    volume = Volume(tmp_path / "volume")
    (found,) = import_files(tmp_path / "course", "course", volume)
    assert found.startswith(name) and reason in found and str(tmp_path) not in found
    assert (volume.datasets / "course-sprites" / "good.npy").is_file()
    assert "a pickle ran" not in capsys.readouterr().out


def test_weights_without_their_tokenizers_are_named(course, tmp_path):
    shutil.copytree(course / "Transformer/weights", tmp_path / "weights")
    found = import_files(tmp_path / "weights", "course", Volume(tmp_path / "volume"))
    assert len(found) == 4 and all("has no tokenizers with" in reason for reason in found)


def archive(path, name: str, data: bytes = b"x", mode: int = 0) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        member = zipfile.ZipInfo(name)
        member.external_attr, member.compress_type = mode << 16, zipfile.ZIP_DEFLATED
        packed.writestr(member, data)


@pytest.mark.parametrize("name", ["../out.pt", "/etc/out-of-course.pt", "a/../../out.pt"])
def test_an_archive_writes_nothing_outside_its_own_directory(name, tmp_path):
    archive(tmp_path / "slip.zip", name)
    (reason,) = import_files(tmp_path / "slip.zip", "course", Volume(tmp_path / "volume"))
    assert "has unexpected content for its name" in reason
    assert not [file for file in files_below(tmp_path) if file.endswith("out.pt")]
    assert not Path("/etc/out-of-course.pt").exists()


def test_links_are_not_followed(tmp_path):
    archive(tmp_path / "link.zip", "tmodel_00.pt", b"/etc/passwd", stat.S_IFLNK | 0o777)
    (reason,) = import_files(tmp_path / "link.zip", "course", Volume(tmp_path / "volume"))
    assert "has unexpected content for its name (it begins with b'/etc/pas')" in reason, "the link's own bytes"
    (tmp_path / "course").mkdir()
    (tmp_path / "course" / "tmodel_00.pt").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="none of the course's files"):
        import_files(tmp_path / "course", "course", Volume(tmp_path / "volume"))


def test_what_was_brought_is_listed(brought):
    listed = json.loads((brought.checkpoints / "diffusion/course-model/imported.json").read_text())
    assert listed["model_04.pt"]["from"] == "Diffusion/weights/model_4.pth" and len(listed) == 3
    assert WeightFiles(brought.checkpoints / "diffusion/course-model", "model").imported() == set(listed)
