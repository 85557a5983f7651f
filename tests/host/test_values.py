"""Values that make no sense: refused in one sentence of the lab's own words, before anything is made or started."""

import re

import pytest

from tests.lab import run_lab
from vlalab import cli
from vlalab.commands import course, programs
from vlalab.environments import venvs
from vlalab.host.shared_code import Interval
from vlalab.runtimes import interface
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
        (venvs, "ensure"), (interface, "choose"), (interface, "instances"), (test_run, "run"),
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
    if flag.values.choices:
        return [flag.values.choices[0] + "x", flag.values.choices[-1][:-1] + "_"]
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
    for text in nonsense(flag) if not (flag.is_positional and flag.is_several)
]  # fmt: skip


def words_with(name: str, flag, text: str) -> list[str]:
    """Returns the plain words that a task needs, in their order: good ones, but for that flag this text."""
    words = [one for one in ALL[name].flags if one.is_positional]
    before = words.index(flag) + 1 if flag in words else 0
    needed = [one for at, one in enumerate(words) if one.is_needed or at < before]
    good = ["." if one.kind == "path" else next(iter(one.values.choices), "oracle") for one in needed]
    words = [text if one == flag else value for one, value in zip(needed, good, strict=True)]
    return words if flag in needed else [*words, f"{flag.label}={text}"]


@pytest.mark.parametrize(("name", "flag", "text"), CASES, ids=lambda one: getattr(one, "name", one))
def test_invalid_value_is_rejected_in_one_sentence(call, name, flag, text):
    says = call(name, *words_with(name, flag, text))
    assert "\n" not in says and flag.label.lstrip("-") in says
    assert text.split(",")[0] in says
    assert any(word in says for word in ("xpected", "Known:", "known:", "did you mean", "create one", "existing:"))


def test_there_are_many_such_flags():
    assert len({(name, flag.name) for name, flag, _ in CASES}) > 60


@pytest.mark.parametrize("lab", course.labs())
@pytest.mark.parametrize("given", ["foo=3", "foo", "=", "epochs=0", "epochs=x", "seed", "precision=fp8", "keep=-1"])
def test_invalid_setting_is_rejected(call, lab, given):
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
        (["leaderboard", "--csv", "all.xls"], "invalid --csv 'all.xls'; expected a file name that ends with .csv"),
        (["leaderboard", "--html", "/nowhere/all.html"], "directory /nowhere does not exist"),
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
        (["eval", "libero_goal", "--policy", "http://"], "expected for example http://host:8000"),
        (["eval", "libero_goal", "--policy", "http://h:99999"], "expected for example http://host:8000"),
        (["eval", "libero_goal", "--policy", "ws://"], "or ws://host:8000"),
        (["eval", "libero_goal", "--policy", "http://a:1,oracle"], "has several values; expected URLs"),
        (["eval", "libero_goal", "--policy", "http://a:1", "--policy", "http://a:1/"], "http://a:1 twice"),
        (["eval", "libero_goal", "--replicas", "2"], "--replicas 2 requires --policy oracle"),
        (["eval", "libero_goal", "--replicas", "2", "--policy", "http://a:1"], "--replicas starts new policies"),
        (["eval", "--join", "http://a:1", "--replicas", "2"], "remove --replicas"),
        (
            ["eval", "libero_goal", "--listen", "0.0.0.0:8100", "--runtime", "docker"],
            "must be this machine's IP address in its network",
        ),
        (
            ["eval", "libero_goal", "--listen", "localhost:81", "--runtime", "docker"],
            "with --runtime local it can be any address",
        ),
        (["up", "oracle", "ui", "--stay"], "--foreground requires exactly one policy, got oracle, ui"),
        (["up", "ui", "--foreground"], "--foreground requires exactly one policy, got ui"),
        (["up", "oracle", "--stay", "--runtime", "docker"], "--foreground requires --runtime local"),
        (["eval", "libero_goal", "--trials", "2", "--episodes", "0-1"], "one of them"),
        (["eval", "libero_goal", "--resume", "oracle", "--run-id", "b"], "one of them"),
        (["train", "transformer", "--data", "digits"], "it accepts --corpus"),
        (["train", "diffusion", "--gpus", "2"], "runs on one GPU"),
        (["train", "vit", "--gpus", "2"], "train vit runs on one GPU"),
        (["train", "vit", "--corpus", "default"], "train vit does not accept --corpus; it accepts --data"),
        (["train", "gpt", "--size", "tiny"], "train gpt does not accept --size; it accepts --corpus, --pair"),
        (["train", "gpt", "--set", "top-p=0"], "--set top-p 0 is out of range; expected more than 0, at most 1"),
        (["train", "bert", "--set", "warmup=-1"], "--set warmup -1 is out of range; expected 0 or more"),
        (["train", "transformer", "--corpus", "python"], "train transformer needs a parallel corpus"),
        (["train", "lstm", "--corpus", "python"], "train lstm needs a parallel corpus"),
        (["train", "lstm", "--data", "digits"], "train lstm does not accept --data; it accepts --corpus, --pair"),
        (["train", "vae", "--set", "anneal=2"], "--set anneal 2 is out of range; expected 0 to 1"),
        (["report", "libero_x"], "run 'libero_x' not found; known: oracle. Run ./lab runs to list all"),
        (["report", "a", "b"], "unexpected argument 'b'"),
        (["report", "./elsewhere"], "run './elsewhere' not found"),
        (["compare", "oracle", "oracel"], "run 'oracel' not found; did you mean 'oracle'?"),
        (["eval", "libero_goal", "--resume", "orakel"], "--resume 'orakel' not found; did you mean 'oracle'?"),
        (["runs", "--delete", "oracle,frist"], "--delete 'frist' not found; did you mean 'first'?"),
        (["translate", "Hello.", "--name", "firts"], "--name 'firts' not found; did you mean 'first'?"),
        (["translate", "Hello.", "--epoch", "0-7"], "expected epochs such as 0,10,29"),
        (["course", "import", "volume/runs/oracle/run.sqlite"], "is not a directory or zip archive"),
        (["sample", "diffusion", "--name", "any"], "not found: no trained diffusion in volume yet; create one: "),
        (["score", "diffusion"], "no trained diffusion in volume yet; create one: ./lab train diffusion"),
        (["verify", "openvla", "--checkpoint", "nowhere"], "existing: none"),
    ],
)
def test_messages(call, words, says):
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
def test_interval_contains_its_values(text, inside, beyond, words):
    interval = Interval(text)
    assert all(value in interval for value in inside)
    assert not any(value in interval for value in beyond)
    assert interval.description == words
