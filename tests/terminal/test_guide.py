"""Every command of docs/course.md, in the order of the page: for real in small, or dry where it needs a large model.

Then the commands of docs/handout.md, dry.
"""

from __future__ import annotations

import re
import shlex

import pytest

from vlalab.description import manifests, runs
from vlalab.host import paths

pytestmark = pytest.mark.usefixtures("needs_course")
PAGES = [page for page in (paths.ROOT / "docs/course.md", paths.ROOT / "docs/ko/course.md") if page.exists()]
HANDOUT = [paths.ROOT / "docs/handout.md", paths.ROOT / "docs/ko/handout.md"]
TEXT = PAGES[0].read_text(encoding="utf-8")
ONE = {"OMP_NUM_THREADS": "1"}
TINY = "batch-tokens=64,precision=fp32,d-model=16,d-ff=16,N=1,h=2,seq=16,min-frequency=1,keep=0"
TRAIN = f"train transformer --corpus LETTERS --pair en-it --size tiny --device cpu --set {TINY} --epochs"
PAINT = "train diffusion --context --epochs 1 --device cpu --set n-feat=8,batch-size=512,timesteps=4,precision=fp32"

# What is run instead of a command that would take long: the same task, of the same flags, with small numbers.
SMALL = {
    "./lab train transformer --corpus reverse --size tiny --epochs 6 --set keep=0": f"{TRAIN} 2",
    './lab translate "a b c d e f" --epoch 0,2,5': 'translate "a b" --epoch 0,1',
    './lab translate "a b c d e f" --pictures': 'translate "a b" --pictures',
    './lab translate "The door is open." --epoch 0,10,20,31': "translate a --epoch 0,1 --dry-run",
    "./lab train diffusion --data digits --context --epochs 32 --set keep=0,save-every=4": PAINT + " --data digits",
    "./lab sample diffusion --epoch 3,11,31": "sample diffusion --epoch 0 --count 2 --steps 2",
}
# What tests elsewhere run for real, with what they call: here it is not run again.
ELSEWHERE = {
    "./lab train transformer --size course --corpus opus_books": ("ws_mdl/test_course_files.py", 'get_config("course"'),
    "./lab sample diffusion --compare": ("ws_mdl/test_diffusion_train.py", "sampling.save_comparison(request, trained"),
    "./lab eval libero_goal --trials 2": ("terminal/test_runs.py", 'done("eval", "libero_goal"'),
    "./lab compare libero_goal-oracle-1 libero_goal-random-1": ("terminal/test_runs.py", 'done("compare"'),
    "./lab report latest": ("terminal/test_runs.py", 'done("report", "latest")'),
    "./lab score diffusion": ("terminal/test_course.py", 'done("score", "diffusion"'),
    "./lab dataset goal-oracle --format lerobot --size 128": (
        "libero/test_dataset_making.py",
        "services.libero.datasets",
    ),
    "./lab dataset goal-oracle --show": ("libero/test_dataset_making.py", '"--check", "--show"'),
    "./lab tensorboard": ("ws_mdl/test_services.py", "services.ws_mdl.tensorboard"),
}
AS_IT_IS = (
    "./lab env ws_mdl", "./lab check", "./lab check transformer.attention",
    "./lab status", "./lab course import course.zip", "./lab runs", "./lab down",
)  # fmt: skip


def commands(text: str) -> list[str]:
    """Returns the commands in a page's fenced blocks of shell, without what a comment says."""
    blocks = re.findall(r"(?ms)^```sh\n(.*?)^```", text)
    return [line.split("  #")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


def flags(command: str) -> set[str]:
    return set(re.findall(r" (--[a-z-]+)", command))


@pytest.fixture(scope="module")
def student(shared_terminal, tmp_path_factory):
    """A terminal whose volume has what looks like checkpoints and a data set, and a folder with a small corpus."""
    directory = tmp_path_factory.mktemp("student")
    published = ("openvla-7b", "openvla-7b-finetuned-libero-goal", "gr00t-n1.5-libero-goal-posttrain")
    for name in ("openvla-tiny", "gr00t-goal-oracle", *published):
        checkpoint = shared_terminal.volume / "checkpoints" / name
        checkpoint.mkdir(parents=True)
        family = "gr00t_n1_5" if name.startswith("gr00t") else "openvla"
        (checkpoint / "config.json").write_text(f'{{"model_type": "{family}"}}')
        (checkpoint / "model.safetensors").touch()
    meta = shared_terminal.volume / "datasets/goal-oracle/meta"
    meta.mkdir(parents=True)
    (meta / "info.json").write_text("{}")
    (directory / "letters.tsv").write_text("".join(f"a b {n % 7}\t{n % 7} b a\n" for n in range(40)))
    return shared_terminal, directory


def test_the_page_has_a_way_to_each_of_its_commands():
    known = set(SMALL) | set(ELSEWHERE) | set(AS_IT_IS)
    assert len(commands(TEXT)) > 30 and known <= set(commands(TEXT))
    for command, small in SMALL.items():
        assert shlex.split(command)[1] == shlex.split(small)[0] and flags(command) <= flags(f" {small}"), command
    for path, call in ELSEWHERE.values():
        assert call in (paths.ROOT / "tests" / path).read_text(encoding="utf-8"), path


def test_both_languages_have_the_same_commands():
    assert len({tuple(commands(page.read_text(encoding="utf-8"))) for page in PAGES}) == 1


def test_every_command_of_the_page_in_its_order(student):
    terminal, directory = student
    for command in dict.fromkeys(commands(TEXT)):
        if command in ELSEWHERE:
            continue
        if command in SMALL:
            words = shlex.split(SMALL[command].replace("LETTERS", str(directory / "letters.tsv")))
        else:
            words = shlex.split(command)[1:] + ([] if command in AS_IT_IS else ["--dry-run"])
        terminal.done(*words, code=CODES.get(command, 0), **ONE)


CODES = {"./lab course import course.zip": 1}  # there is none here: test_course_files.py brings one


# What tests elsewhere run for real.
HANDOUT_ELSEWHERE = {
    "./lab doctor --offline": ("host/test_doctor.py", '"--offline"'),
    "./lab tensorboard": ("ws_mdl/test_services.py", "services.ws_mdl.tensorboard"),
}


def rows(page) -> list[str]:
    """Returns the commands in the third column of a page's tables."""
    lines = [line.split(" | ") for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return [command.strip("`") for _, _, command, _ in lines]


def test_the_handouts_page_has_the_same_rows_in_both_languages():
    assert len(rows(HANDOUT[0])) > 25 and rows(HANDOUT[0]) == rows(HANDOUT[1])


def test_every_command_of_the_handouts_page(student):
    terminal, _ = student
    for lab in ("transformer", "diffusion"):  # what looks like a trained run
        weights = terminal.volume / "checkpoints" / lab / "first" / f"{runs.PREFIXES[lab]}_00.pt"
        weights.parent.mkdir(parents=True, exist_ok=True)
        weights.touch()
    for command in rows(HANDOUT[0]):
        words = shlex.split(command)[1:]
        if words[0] == "env":
            assert words[1] in manifests.environments()
        elif command in HANDOUT_ELSEWHERE:
            path, call = HANDOUT_ELSEWHERE[command]
            assert call in (paths.ROOT / "tests" / path).read_text(encoding="utf-8"), path
        else:
            terminal.done(*words, *([] if "--dry-run" in words else ["--dry-run"]), **ONE)
