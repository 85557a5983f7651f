"""Values that make no sense: refused in one sentence of the lab's own words, before anything is made or started."""

import re

import pytest

from tests.lab import run_lab
from vlalab import cli
from vlalab.commands import course, programs
from vlalab.environments import venvs
from vlalab.host.borrowed import Interval
from vlalab.runtimes import both
from vlalab.tasks.flags import Flag
from vlalab.tasks.values import read_text
from vlalab.testing import run as test_run

ALL = cli.TASKS


class BeganError(AssertionError):
    """Something was about to be made or started."""


@pytest.fixture(autouse=True)
def nothing_begins(monkeypatch, tmp_path):
    def began(*_, **__):
        raise BeganError

    for owner, name in (
        (venvs, "ensure"), (both, "choose"), (both, "instances"), (test_run, "run"),
        (programs, "supervise"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, began)
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    for made in ("runs/oracle/run.sqlite", "checkpoints/transformer/first/tmodel_00.pt"):
        (tmp_path / "volume" / made).parent.mkdir(parents=True)
        (tmp_path / "volume" / made).touch()
    monkeypatch.chdir(tmp_path)


def nonsense(flag: Flag) -> list[str]:
    """Returns texts that are no value of a flag."""
    if flag.kind in ("episodes", "ranges", "tasks"):
        return ["x-", "5-2", "-1", "1;2", *([str(10**9)] if flag.kind == "episodes" else [])]
    if flag.kind in ("path", "path or checkpoint", "path or dataset"):
        return ["/nowhere/at/all", "./nowhere"]
    if flag.kind in ("directory name", "recording", "run id"):
        return ["/x", "a/../b"]
    if flag.pattern:
        return [text for text in ("/x", "a/../b") if not re.fullmatch(flag.pattern, text)]
    if flag.values.known:
        return [flag.values.known[0] + "x", flag.values.known[-1][:-1] + "_"]
    if not flag.kind and flag.type in (int, float):
        return ["x", "1,5", "nan", "inf", *outside(Interval(flag.within or "(-inf, inf)"))]
    return [] if flag.values.read is read_text else ["no, such value!"]


def outside(interval: Interval) -> list[str]:
    return [f"{edge:.0f}" for edge in (interval.ends[0] - 1, interval.ends[1] + 1) if abs(edge) != float("inf")]


@pytest.fixture
def call(capsys):
    """Returns a function that says what a task ends with: its error without the lab's name."""

    def called(name: str, *words: str) -> str:
        code, told = run_lab(name, *words), capsys.readouterr()
        assert code == 1 and not told.out
        assert told.err.startswith("lab: ")
        return told.err.removeprefix("lab: ").strip()

    return called


CASES = [
    (name, flag, text) for name, task in ALL.items() for flag in task.flags if flag.type is not bool
    for text in nonsense(flag) if not (flag.is_word and flag.is_several)
]  # fmt: skip


def words_with(name: str, flag, text: str) -> list[str]:
    """Returns the plain words that a task needs, in their order: good ones, but for that flag this text."""
    words = [one for one in ALL[name].flags if one.is_word]
    before = words.index(flag) + 1 if flag in words else 0
    needed = [one for at, one in enumerate(words) if one.is_needed or at < before]
    good = ["." if one.kind == "path" else next(iter(one.values.known), "oracle") for one in needed]
    words = [text if one == flag else value for one, value in zip(needed, good, strict=True)]
    return words if flag in needed else [*words, f"{flag.label}={text}"]


@pytest.mark.parametrize(("name", "flag", "text"), CASES, ids=lambda one: getattr(one, "name", one))
def test_a_bad_value_is_refused_in_one_sentence_before_anything_begins(call, name, flag, text):
    says = call(name, *words_with(name, flag, text))
    assert "\n" not in says and flag.label.lstrip("-") in says
    assert text.split(",")[0] in says
    assert any(word in says for word in ("xpected", "Known:", "did you mean", "there are"))


def test_there_are_many_such_flags():
    assert len({(name, flag.name) for name, flag, _ in CASES}) > 60


@pytest.mark.parametrize("lab", course.labs())
@pytest.mark.parametrize("given", ["foo=3", "foo", "=", "epochs=0", "epochs=x", "seed", "precision=fp8", "keep=-1"])
def test_a_setting_that_makes_no_sense_is_refused(call, lab, given):
    says = call("train", lab, f"--set={given}")
    assert "--set" in says and "\n" not in says


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ("norm=post,d_model=128", ["--norm=post", "--d-model=128"]),
        ("tied", ["--tied"]),
        ("tied=true", ["--tied"]),
        ("tied=False", ["--no-tied"]),
        ("N=4,dropout=0", ["--N=4", "--dropout=0"]),
    ],
)
def test_settings_become_the_trainers_flags(given, flags):
    assert course.flags("transformer", given.split(",")) == flags


def test_tasks_may_be_named_as_their_benchmark_names_them():
    text = "0, 2-4,reach-v3,open_the_drawer"
    (flag,) = (flag for flag in ALL["eval"].flags if flag.name == "tasks")
    assert flag.read([text]) == "0,2-4,reach-v3,open_the_drawer"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["eval", "libero_goal", "--trials", "x"], "--trials 'x' is not an integer; expected 1 to 50"),
        (["eval", "libero_goal", "--video", "som"], "did you mean 'sample'?"),
        (["eval", "libero_goal", "--ensemble", "men"], "did you mean 'mean'?"),
        (["eval", "libero_goal", "--realtime", "0"], "--realtime 0"),
        (["leaderboard", "libero_gaol"], "did you mean 'libero_goal'?"),
        (["leaderboard", "--csv", "all.xls"], "invalid --csv 'all.xls'; expected a name that ends with .csv"),
        (["leaderboard", "--html", "/nowhere/all.html"], "there is no directory /nowhere; make it"),
        (["train", "transformer", "--size", "tiy"], "did you mean 'tiny'?"),
        (["train", "transformer", "--set", "foo=3"], "train transformer --set 'foo' not found"),
        (["sample", "diffusion", "--steps", "0"], "--steps 0 is out of range; expected 1 to 500"),
        (["eval", "libero_gaol"], "did you mean 'libero_goal'?"),
        (["eval", "MT10"], "suite 'MT10' not found; did you mean 'metaworld_mt10'?"),
        (["eval", "LIBERO-Goal"], "suite 'LIBERO-Goal' not found; did you mean 'libero_goal'?"),
        (["eval", "libero_long"], "suite 'libero_long' not found; did you mean 'libero_10'?"),
        (["eval", "libero_goal", "--policy", "OpenVLA"], "policy 'OpenVLA' not found; did you mean 'openvla'?"),
        (["eval", "metaworld_mt10", "--policy", "random"], "did you mean 'metaworld_random'?"),
        (["up", "OpenVLA"], "service 'OpenVLA' not found; did you mean 'openvla'?"),
        (["eval", "libero_goal", "--policy", "http://"], "expected something like http://host:8000"),
        (["eval", "libero_goal", "--policy", "http://h:99999"], "expected something like http://host:8000"),
        (["eval", "libero_goal", "--policy", "ws://"], "or ws://host:8000"),
        (["eval", "libero_goal", "--policy", "http://a:1,oracle"], "names several; expected an address of each"),
        (["eval", "libero_goal", "--policy", "http://a:1", "--policy", "http://a:1/"], "http://a:1 twice"),
        (["eval", "libero_goal", "--replicas", "2"], "--replicas 2 of which policy? Name it: --policy oracle"),
        (["eval", "libero_goal", "--replicas", "2", "--policy", "http://a:1"], "starts policies of its own"),
        (["eval", "--join", "http://a:1", "--replicas", "2"], "leave --replicas out"),
        (
            ["eval", "libero_goal", "--listen", "0.0.0.0:8100", "--runtime", "docker"],
            "this machine's address in its network",
        ),
        (
            ["eval", "libero_goal", "--listen", "localhost:81", "--runtime", "docker"],
            "--runtime local listens anywhere",
        ),
        (["up", "oracle", "ui", "--stay"], "--stay keeps one policy in front, not oracle, ui"),
        (["up", "ui", "--stay"], "--stay keeps one policy in front, not ui"),
        (["up", "oracle", "--stay", "--runtime", "docker"], "--stay works with --runtime local"),
        (["eval", "libero_goal", "--trials", "2", "--episodes", "0-1"], "give one of them"),
        (["eval", "libero_goal", "--resume", "oracle", "--run-id", "b"], "give one of them"),
        (["train", "transformer", "--data", "digits"], "its own: --corpus"),
        (["train", "diffusion", "--gpus", "2"], "runs on one GPU"),
        (["train", "vit", "--gpus", "2"], "train vit runs on one GPU"),
        (["train", "vit", "--corpus", "default"], "train vit does not take --corpus; its own: --data"),
        (["train", "gpt", "--size", "tiny"], "train gpt does not take --size; its own: --corpus, --pair"),
        (["train", "gpt", "--set", "top-p=0"], "--set top-p 0 is out of range; expected more than 0, at most 1"),
        (["train", "bert", "--set", "warmup=-1"], "--set warmup -1 is out of range; expected 0 or more"),
        (["train", "transformer", "--corpus", "python"], "has one language and train transformer translates"),
        (["train", "lstm", "--corpus", "python"], "has one language and train lstm translates"),
        (["train", "lstm", "--data", "digits"], "train lstm does not take --data; its own: --corpus, --pair"),
        (["train", "vae", "--set", "anneal=2"], "--set anneal 2 is out of range; expected 0 to 1"),
        (["report", "libero_x"], "run 'libero_x' not found; there are oracle. ./lab runs lists all"),
        (["report", "a", "b"], "'b' is a word too many"),
        (["report", "./elsewhere"], "run './elsewhere' not found"),
        (["compare", "oracle", "oracel"], "b 'oracel' not found; did you mean 'oracle'?"),
        (["eval", "libero_goal", "--resume", "orakel"], "--resume 'orakel' not found; did you mean 'oracle'?"),
        (["runs", "--delete", "oracle,frist"], "--delete 'frist' not found; did you mean 'first'?"),
        (["translate", "Hello.", "--name", "firts"], "--name 'firts' not found; did you mean 'first'?"),
        (["translate", "Hello.", "--epoch", "0,7"], "--epoch 7: 'first' has no weights of it; it has 0"),
        (["translate", "Hello.", "--epoch", "0-7"], "expected epochs such as 0,10,29"),
        (["course", "import", "volume/runs/oracle/run.sqlite"], "is no folder and no zip archive"),
        (["sample", "diffusion", "--name", "any"], "there are none: no trained diffusion is in volume yet; first: "),
        (["score", "diffusion"], "no trained diffusion is in volume yet; first: ./lab train diffusion"),
        (["verify", "openvla", "--checkpoint", "nowhere"], "there are: none"),
    ],
)
def test_what_is_said(call, words, says):
    assert says in call(*words)


@pytest.mark.parametrize(
    ("text", "inside", "beyond", "words"),
    [
        ("[1, inf)", [1, 2.5], [0.9, float("inf"), float("nan")], "1 or more"),
        ("(0, 600]", [0.1, 600], [0, 601], "more than 0, at most 600"),
        ("[0, 1)", [0, 0.99], [1, -0.1], "0 or more, less than 1"),
        ("[0, 1]", [0, 1], [1.1], "0 to 1"),
        ("(-inf, inf)", [-5, 0], [float("-inf")], "a number such as 7"),
    ],
)
def test_an_interval_holds_what_it_says(text, inside, beyond, words):
    interval = Interval(text)
    assert all(value in interval for value in inside)
    assert not any(value in interval for value in beyond)
    assert interval.description == words
